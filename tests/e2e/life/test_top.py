"""`milligpu top` and `ps` of a cluster: pods with their shares and what was measured, and who waits."""

import json

import pytest

from devcluster.api import read_json
from devcluster.platform import GpuNode
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.conftest import milligpu
from tests.e2e.life.test_resize import order, says, start

pytestmark = pytest.mark.e2e


def test_top_shows_pods_with_share_and_use_and_pods_that_wait(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 600, 8192)
    order(gpu_node, namespace, "a", "take 1000")
    says(gpu_node, namespace, "a", "take 1000")
    gpu_node.cluster.client.create(pod("late", resources={names.VGPU: "700"}), namespace=namespace)

    found = json.loads(milligpu(gpu_node, "top", "-o", "json").stdout)
    (card,) = found["gpus"]
    assert (card["state"], card["free_milli"], card["mib"]) == ("ok", 400, 40960)
    (holder,) = [each for each in found["shares"] if each["namespace"] == namespace]
    assert (holder["pod"], holder["container"], holder["milli"], holder["mib"]) == ("a", "main", 600, 8192)
    assert holder["memory_used"] >= 1000 << 20
    until("a rate", lambda: _holder(gpu_node, namespace)["utilization"] is not None, 30)
    (waiting,) = [each for each in found["waiting"] if each["namespace"] == namespace]
    assert waiting["pod"] == "late"
    assert "InsufficientGPUCore" in waiting["message"]

    shown = milligpu(gpu_node, "top", "--once").stdout
    assert all(word in shown for word in ("MEASURED", gpu_node.node.name, "late", "InsufficientGPUCore"))
    assert f"{namespace}/a" in shown
    (process,) = [each for each in found["processes"] if each["namespace"] == namespace]
    assert (process["pod"], process["name"], process["node"]) == ("a", "python3", gpu_node.node.name)
    assert card["temperature"] > 0
    node = read_json(gpu_node.cluster.client, f"/api/v1/nodes/{gpu_node.node.name}")
    assert f"http://{node['metadata']['annotations'][names.AGENT]}" == gpu_node.url
    assert milligpu(gpu_node, "-n", namespace, "ps", "-o", "name").stdout.split() == [f"{namespace}/a"]


def _holder(gpu_node: GpuNode, namespace: str) -> dict[str, float | None]:
    found = json.loads(milligpu(gpu_node, "-n", namespace, "top", "-o", "json").stdout)
    return found["shares"][0]
