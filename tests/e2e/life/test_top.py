"""`milligpu top` and `ps` of a cluster: pods with their shares and what was measured, and who waits."""

import json

import pytest

from devcluster.platform import GpuNode
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.conftest import milligpu
from tests.e2e.life.test_resize import order, says, start

pytestmark = pytest.mark.e2e


def test_pods_are_shown_with_their_share_their_use_and_those_that_wait(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 600, 8192)
    order(gpu_node, namespace, "a", "take 1000")
    says(gpu_node, namespace, "a", "take 1000")
    gpu_node.cluster.client.create(pod("late", resources={names.VGPU: "700"}), namespace=namespace)

    found = json.loads(milligpu(gpu_node, "top", "-o", "json").stdout)
    (card,) = found["gpus"]
    assert (card["state"], card["free_milli"], card["mib"]) == ("ok", 400, 40960)
    (holder,) = [each for each in found["pods"] if each["namespace"] == namespace]
    assert (holder["pod"], holder["container"], holder["milli"], holder["mib"]) == ("a", "main", 600, 8192)
    assert holder["used_mib"] >= 1000
    until("a rate", lambda: _holder(gpu_node, namespace)["busy"] is not None, 30)
    (waiting,) = [each for each in found["waiting"] if each["namespace"] == namespace]
    assert waiting["pod"] == "late"
    assert "InsufficientGPUCore" in waiting["why"]

    shown = milligpu(gpu_node, "top", "--once").stdout
    assert all(word in shown for word in ("MEASURED", gpu_node.node.name, "late", "InsufficientGPUCore"))
    assert milligpu(gpu_node, "-n", namespace, "ps", "-o", "name").stdout.split() == [f"{namespace}/a"]


def _holder(gpu_node: GpuNode, namespace: str) -> dict[str, float | None]:
    found = json.loads(milligpu(gpu_node, "-n", namespace, "top", "-o", "json").stdout)
    return found["pods"][0]
