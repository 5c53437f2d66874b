"""A node whose agent was killed: everybody who looks is told, and nothing new is placed there until it is back."""

import json
from typing import Any

import pytest
from lightkube.resources.core_v1 import Node, Pod

from devcluster.platform import GpuNode
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.cluster.node_conditions import NodeConditionType
from milligpu.model import names
from milligpu.softgpu.start import inject_fault
from tests.e2e.life.conftest import milligpu
from tests.e2e.life.test_resize import start

pytestmark = pytest.mark.e2e


def test_a_killed_agent_shows_in_explain_top_condition_and_event_and_all_clears_when_it_is_back(
    gpu_node: GpuNode, namespace: str
) -> None:
    client, name = gpu_node.cluster.client, gpu_node.node.name
    # After an upgrade the kubelet may miss the end of the new agent: it looks up by name whose stream has ended.
    gpu_node.restart()
    start(gpu_node, namespace, "tenant", 200, 1024)
    until("the agent to be reported", lambda: condition(gpu_node).status == "True", 30, retry=(ValueError,))
    gpu_node.agent.kill()
    until("the kubelet to notice", lambda: gpu_node.allocatable(names.VGPU) == 0, 60)
    client.create(pod("late", resources={names.VGPU: "200"}), namespace=namespace)

    def explained() -> str:
        return milligpu(gpu_node, "-n", namespace, "explain", "late").stdout

    until("the reason", lambda: "1 AgentAway" in explained(), 30)
    until("the condition", lambda: condition(gpu_node).status == "False", 60)
    since = condition(gpu_node).lastTransitionTime.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert f"{name}: the agent does not answer since {since}: start `milligpu agent`" in explained()
    shown = json.loads(milligpu(gpu_node, "top", "-o", "json").stdout)
    assert [gpu["state"] for gpu in shown["gpus"]] == ["no-agent"]
    assert any("the agent does not answer since" in problem for problem in shown["problems"])
    until("the event", lambda: "GPUAgentAway" in gpu_node.cluster.kubectl("describe", "node", name), 30)
    assert node_of(gpu_node, namespace, "late") is None

    gpu_node.agent.start()
    gpu_node.wait_ready()
    until("the condition to be good", lambda: condition(gpu_node).status == "True", 60)
    until("the pod to be placed", lambda: node_of(gpu_node, namespace, "late") == name, 60)
    shown = json.loads(milligpu(gpu_node, "top", "-o", "json").stdout)
    assert [gpu["state"] for gpu in shown["gpus"]] == ["ok"]
    assert shown["problems"] == []
    tenant: Any = client.get(Pod, "tenant", namespace=namespace)
    assert tenant.status.containerStatuses[0].restartCount == 0


def test_an_unhealthy_gpu_shows_in_condition_and_event_of_its_node(gpu_node: GpuNode) -> None:
    health, name = NodeConditionType.GPUS_HEALTHY, gpu_node.node.name
    until("all to be well", lambda: condition(gpu_node, health).status == "True", 30, retry=(ValueError,))
    inject_fault(gpu_node.softgpu_folder, "0", {"xid": 79})
    try:
        until("the condition", lambda: condition(gpu_node, health).status == "False", 30)
        uuid = gpu_node.inventory()[0].uuid
        assert (
            f"1 of 1 GPUs are unhealthy and get no new shares: {uuid} (XID 79"
            in condition(gpu_node, health).message
        )
        until("the event", lambda: "GPUUnhealthy" in gpu_node.cluster.kubectl("describe", "node", name), 30)
    finally:
        inject_fault(gpu_node.softgpu_folder, "0", {"clear": True})
    until("all to be well again", lambda: condition(gpu_node, health).status == "True", 30)
    until("the kubelet to count it again", lambda: gpu_node.allocatable(names.VGPU) == 1000, 30)


def node_of(gpu_node: GpuNode, namespace: str, name: str) -> str | None:
    found: Any = gpu_node.cluster.client.get(Pod, name, namespace=namespace)
    return found.spec.nodeName


def condition(gpu_node: GpuNode, kind: NodeConditionType = NodeConditionType.AGENT_READY) -> Any:
    """One of the node's conditions."""
    node: Any = gpu_node.cluster.client.get(Node, gpu_node.node.name)
    (found,) = [each for each in node.status.conditions if each.type == kind]
    return found
