"""Manifests of every dialect, as their users wrote them, end on a GPU: admission, decision, grant."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.platform import SchedulerService, account_kubeconfig, free_port, install
from devcluster.wait import until
from milligpu.model import names
from milligpu.scheduler.config import in_default_scheduler
from milligpu.scheduler.manifests import SCHEDULER
from milligpu.scheduler.webhook_objects import Target
from milligpu.wire.grant import decode_grant
from tests.e2e.scheduling import gpu_nodes, overcommitted

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "dialects"
# A vGPU of 8 GB is half of that card.
VGPU_NODE = {"labels": {"vgpu.type": "v100-8q-8GB"}, "prefix": "half", "taints": ()}
WHOLE_MIB = 40960


def test_every_example_lands_on_the_gpu_that_was_decided(built_programs: None) -> None:
    with Cluster.start(unique_name()) as cluster:
        gpu_nodes(cluster.add_kwok_nodes, 2, 8, options={"prefix": "v100", "taints": ()})
        a100: dict[str, Any] = {"model": "NVIDIA A100-SXM4-40GB", "mib": WHOLE_MIB}
        gpu_nodes(cluster.add_kwok_nodes, 1, 4, options={"prefix": "a100", "taints": ()}, **a100)
        gpu_nodes(cluster.add_kwok_nodes, 1, 2, options=VGPU_NODE, model="GRID V100-8Q", mib=8192, milli=500)
        _start(cluster)
        for file in sorted(EXAMPLES.glob("*.yaml")):
            until(f"{file.name} to be admitted", lambda file=file: _applied(cluster, file), 60)

        until(
            "every pod to be placed", lambda: not _waiting(cluster), 90, last_state=lambda: str(_waiting(cluster))
        )

        found = _pods(cluster)
        assert len(found) >= 16
        for pod in found:
            grant = decode_grant(pod["metadata"]["annotations"][names.GRANT])
            assert (grant.uid, grant.node) == (pod["metadata"]["uid"], pod["spec"]["nodeName"])
            assert all(gpu.startswith(f"GPU-{grant.node}-") for gpu in grant.gpus)
        running = [pod for pod in found if pod["status"]["phase"] == "Running"]
        given = [decode_grant(pod["metadata"]["annotations"][names.GRANT]) for pod in running]
        assert overcommitted(given, WHOLE_MIB) == []


def _start(cluster: Cluster) -> None:
    port = free_port()
    install(cluster, webhook=Target(url=f"https://127.0.0.1:{port}"))
    arguments = ("--namespace", "milligpu", "--webhook-port", str(port))
    service = SchedulerService(cluster, "service", *arguments, kubeconfig=account_kubeconfig(cluster, SCHEDULER))
    service.start().wait_ready()
    cluster.control_plane.stop_scheduler("kube-scheduler")
    cluster.control_plane.start_scheduler(in_default_scheduler(service.url))


def _applied(cluster: Cluster, file: Path) -> bool:
    """Refused while the API server does not know the webhook's certificate yet."""
    said = cluster.kubectl("apply", "-f", str(file), check=False)
    return said.count("created") + said.count("unchanged") + said.count("configured") == _documents(file)


def _documents(file: Path) -> int:
    return sum(line.startswith("kind:") for line in file.read_text().splitlines())


def _pods(cluster: Cluster) -> list[dict[str, Any]]:
    return json.loads(cluster.kubectl("get", "pods", "-o", "json"))["items"]


def _waiting(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in _pods(cluster) if not pod["spec"].get("nodeName")] or (
        ["no pod at all"] if not _pods(cluster) else []
    )
