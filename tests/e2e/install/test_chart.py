"""The chart on a real node, as an admin uses it: install, a share that is held, upgrade, rollback, uninstall."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import Pod

from deploy import images as products
from deploy.chart import CHART
from devcluster import build, images
from devcluster.cluster import Cluster
from devcluster.fixtures import NewCluster
from devcluster.pods import pod, wait_for_phase
from devcluster.report import to_stderr
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.units import parse_quantity
from tests.e2e.install.traces import in_namespace, traces

# `make test` makes the images beforehand; alone, this test makes them itself.
pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(900)]

RELEASE = "milligpu"
NAMESPACE = "milligpu"
KUBE_SCHEDULER = "local.dev/kube-scheduler:1"
VALUES: dict[str, Any] = {
    "image": {"pullPolicy": "Never"},
    "scheduler": {"kubeSchedulerImage": KUBE_SCHEDULER},
    "softgpu": {"enabled": True, "devices": 1},
}


CHANGED: dict[str, Any] = {
    "dialects": {"parts": 5},
    "agent": {"extraArgs": ["--audit-every=5"]},
    "classes": [{"name": "large", "requirements": "memory>=16Gi"}],
    "networkPolicy": {"enabled": True},
}


def run_milligpu(*arguments: str) -> str:
    """Run the command line; it must succeed."""
    command = [str(Path(sys.executable).with_name("milligpu")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_images(cluster: Cluster) -> None:
    """Import the images into the nodes, as a pull from a registry would."""
    kube_scheduler = build.binaries(build.KUBE, to_stderr) / "kube-scheduler"
    archives = [products.archive(product) for product in (products.SERVICE, products.SOFTGPU)]
    for node in cluster.nodes:
        for archive in (*archives, images.program_archive(KUBE_SCHEDULER, kube_scheduler)):
            node.import_image(archive, images.BASE)


def shares(cluster: Cluster) -> int:
    """The device slots that all kubelets report."""
    found = cluster.kubectl("get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/vgpu}")
    return sum(int(parse_quantity(names.VGPU, each)) for each in found.split())


def helm(cluster: Cluster, verb: str, *arguments: str, values: dict[str, Any] | None = None) -> str:
    """Run helm on the release; `values` go on top of those of this test."""
    file = cluster.folder / "values.yaml"
    file.write_text(yaml.safe_dump({**VALUES, **(values or {})}))
    chart = [str(CHART), "--values", str(file)] if verb in {"install", "upgrade"} else []
    wait = [] if verb == "test" else ["--wait"]
    return cluster.helm(verb, RELEASE, *chart, *arguments, "--namespace", NAMESPACE, *wait, "--timeout", "5m")


def run_pod(cluster: Cluster, name: str, *command: str) -> Pod:
    """Create a pod in HAMi's format, and wait until it runs or has run."""
    resources = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "20", "nvidia.com/gpumem": "1000"}
    cluster.client.create(pod(name, command, resources=resources), namespace="default")
    return wait_for_phase(cluster, "default", name, "Running", "Succeeded", deadline_s=120)


def test_the_chart_installs_holds_a_share_is_upgraded_under_tenants_and_leaves_nothing(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster(real_nodes=1)
    cluster.start_services()
    load_images(cluster)
    # The first pod of a node makes directories, too: of the runtime and of the network.
    cluster.client.create(pod("first", ["true"]), namespace="default")
    wait_for_phase(cluster, "default", "first", "Succeeded")
    before = traces(cluster)
    checked = run_milligpu(
        "doctor", "--cluster", "--namespace", "kube-system", "--kubeconfig", str(cluster.kubeconfig)
    )
    assert "FAILED" not in checked
    assert "tried in the namespace kube-system" in " ".join(checked.split())

    printed = helm(cluster, "install", "--create-namespace")
    assert f"helm test {RELEASE} -n {NAMESPACE}" in printed
    until("the node to have shares", lambda: shares(cluster) == 1000, 60)
    assert "The share is held: 1024 MiB, and not more" in helm(cluster, "test", "--logs")

    run_pod(cluster, "tenant", "sleep", "infinity")
    helm(cluster, "upgrade", values=CHANGED)
    classes = cluster.kubectl("get", "gpuclasses", "-o", "name").split()
    assert classes == ["gpuclass.milligpu.dev/large"]
    run_pod(cluster, "after-upgrade", "true")
    helm(cluster, "rollback")
    run_pod(cluster, "after-rollback", "true")
    tenant = cluster.client.get(Pod, "tenant", namespace="default")
    assert tenant.status
    assert tenant.status.phase == "Running"
    assert [each.restartCount for each in tenant.status.containerStatuses or ()] == [0]

    helm(cluster, "uninstall")
    events = cluster.kubectl("events", "--for=pod/tenant", "-o", "jsonpath={.items[*].reason}")
    assert "MilligpuUninstalling" in events.split()
    assert in_namespace(cluster, NAMESPACE) == {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    # With the CRDs go all objects of their kinds, so the chart keeps them.
    cluster.kubectl("delete", "crd", "gpuclasses.milligpu.dev", "sharepods.kubeshare.nthu")
    cluster.kubectl("delete", "namespace", NAMESPACE)
    assert traces(cluster) == before
    # Pods without GPUs do not need milligpu.
    cluster.client.create(pod("plain", ["true"]), namespace="default")
    wait_for_phase(cluster, "default", "plain", "Succeeded")
