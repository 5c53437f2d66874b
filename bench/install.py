"""How long an installation takes, and how soon a new node is ready for shares; images are loaded beforehand.

    PYTHONPATH=. python bench/install.py [--rounds 3]

On a cluster of its own, with software GPUs: seconds from `helm install` until `helm test` has seen a share that is
held, and from a node's Ready condition until its startup taint is gone.
"""

import argparse
import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkube.models.core_v1 import Taint
from lightkube.resources.core_v1 import Node

from deploy import images as products
from deploy.chart import CHART
from devcluster import build, images
from devcluster.cluster import Cluster
from devcluster.report import to_stderr
from devcluster.wait import until
from milligpu.model import names

RELEASE = ("milligpu", "-n", "milligpu")
TAINT = Taint(effect="NoSchedule", key=names.AGENT_NOT_READY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    archives = [products.archive(product) for product in products.PRODUCTS]
    with Cluster.start("bench-install", real_nodes=1, report=to_stderr) as cluster:
        cluster.start_services()
        load(cluster, [*archives, kube_scheduler()])
        installs: list[float] = []
        for number in range(rounds):
            if number:
                cluster.helm("uninstall", *RELEASE, "--wait")
            installs.append(install(cluster))
        joins = [join(cluster, archives) for _ in range(rounds)]
    show("from helm install to a held share", installs)
    show("from Ready to a node without startup taint", joins)


def kube_scheduler() -> Path:
    """The cluster's own kube-scheduler as an image."""
    reference = f"registry.k8s.io/kube-scheduler:{build.kubernetes_version()}"
    return images.program_archive(reference, build.binaries(build.KUBE, to_stderr) / "kube-scheduler")


def load(cluster: Cluster, archives: list[Path]) -> None:
    for node in cluster.nodes:
        for archive in archives:
            node.import_image(archive, images.BASE)


def install(cluster: Cluster) -> float:
    with timed() as took:
        values = ("--create-namespace", "--set", "softgpu.enabled=true", "--wait", "--timeout", "5m")
        cluster.helm("install", RELEASE[0], str(CHART), *RELEASE[1:], *values)
        cluster.helm("test", *RELEASE)
    return took[0]


def join(cluster: Cluster, archives: list[Path]) -> float:
    """Add a node with the startup taint, measure, and take it away."""
    node = cluster.add_node(taints=(TAINT,), archives=archives)

    def free() -> bool:
        found: Any = cluster.client.get(Node, node.name)
        return all(taint.key != names.AGENT_NOT_READY for taint in found.spec.taints or ())

    with timed() as took:
        until("the taint to be gone", free, 120, every_s=0.05)
    cluster.remove_node(node)
    return took[0]


@contextmanager
def timed() -> Generator[list[float]]:
    """Yield a list that has the seconds in the end."""
    took: list[float] = []
    start = time.monotonic()
    yield took
    took.append(time.monotonic() - start)


def show(what: str, seconds: list[float]) -> None:
    each = ", ".join(f"{value:.1f}" for value in seconds)
    print(f"{what}: median {statistics.median(seconds):.1f} s ({each})")


if __name__ == "__main__":
    main()
