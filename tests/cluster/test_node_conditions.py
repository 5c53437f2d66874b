"""Whether a node's agent is there, from what the kubelet reports; what pods on such a node are told."""

import json
from typing import Any

import msgspec
import pytest

from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.node_conditions import NodeConditionType, is_agent_ready, wanted_conditions
from milligpu.cluster.read import NodeReader, read_cluster
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.units import Mib, Milli
from milligpu.wire import kubernetes
from milligpu.wire.inventory import decode_inventory, encode_inventory
from tests.cluster.objects import pod

GPU = Gpu("GPU-1", "A100", Mib(40960))
SICK = Gpu("GPU-2", "A100", Mib(40960), state=GpuState.UNHEALTHY, message="too hot: 97 degrees")
SINCE = "2026-11-18T00:41:10Z"


def node(slots: str | None, *gpus: Gpu, conditions: list[dict[str, str]] | None = None) -> kubernetes.KubeNode:
    allocatable = {"cpu": "4", "memory": "8Gi"} | ({} if slots is None else {names.VGPU: slots})
    text: dict[str, Any] = {
        "metadata": {"name": "n1", "uid": "u1", "annotations": {names.INVENTORY: encode_inventory(gpus or [GPU])}},
        "status": {"allocatable": allocatable, "conditions": conditions or []},
    }
    return msgspec.json.decode(json.dumps(text), type=kubernetes.KubeNode)


def away(since: str) -> dict[str, str]:
    kind = str(NodeConditionType.AGENT_READY)
    return {"type": kind, "status": "False", "lastTransitionTime": since, "reason": "x", "message": "y"}


@pytest.mark.parametrize(
    ("slots", "gpus", "ready"),
    [
        (("1000", "1"), [GPU], True),
        (("0", "0"), [GPU], False),
        (("0", None), [GPU], False),
        (("0", "0"), [SICK], None),
        (("0", "0"), [Gpu("GPU-1", "A100", Mib(1), reserved=Milli(1000))], None),
        ((None, None), [GPU], None),
        (("0", "0"), [], None),
        (("200", "0"), [SICK], True),
    ],
)
def test_an_agent_is_away_when_the_kubelet_offers_nothing_of_a_gpu_in_use(
    slots: tuple[str | None, ...], gpus: list[Gpu], ready: bool | None
) -> None:
    assert is_agent_ready(gpus, slots) is ready


def test_a_pod_is_not_placed_where_the_agent_is_away_and_is_told_since_when_and_what_to_do() -> None:
    waiting = kubernetes.decode_pod(json.dumps(pod("p", 500)).encode())
    here = read_cluster([node("1000")], [waiting])
    assert here.fits(here.waiting()[0].spec)

    state = read_cluster([node("0", conditions=[away(SINCE)])], [waiting])
    spec = state.waiting()[0].spec
    assert not state.fits(spec)
    told = explain_waiting(state, spec)
    assert "1 AgentAway" in told
    assert f"n1: the agent does not answer since {SINCE}: start `milligpu agent` on the node" in told
    assert "try" not in told


def test_a_node_is_read_again_when_its_agent_comes_back() -> None:
    reader = NodeReader()
    states = [reader.read(node(slots)) for slots in ("1000", "0", "0", "1000")]
    found = [None if each is None else each.node.gpus[0].state for each in states]
    assert found == [GpuState.OK, GpuState.NO_AGENT, None, GpuState.OK]


def test_conditions_name_the_unhealthy_gpu_and_say_nothing_new_of_gpus_whose_agent_is_away() -> None:
    health, agent = wanted_conditions([GPU, SICK], True)
    assert (health.type, health.good) == (NodeConditionType.GPUS_HEALTHY, False)
    assert "1 of 2 GPUs are unhealthy" in health.message
    assert "GPU-2 (too hot: 97 degrees)" in health.message
    assert (agent.type, agent.good) == (NodeConditionType.AGENT_READY, True)
    assert [(each.type, each.good) for each in wanted_conditions([GPU, SICK], False)] == [
        (NodeConditionType.AGENT_READY, False)
    ]
    assert wanted_conditions([], None) == ()


def test_no_inventory_says_that_its_agent_is_away() -> None:
    text = encode_inventory([SICK]).replace("unhealthy", "no-agent")
    with pytest.raises(BadFormat, match="must be ok or cordoned or unhealthy"):
        decode_inventory(text)
