"""When conditions and events about a node are written, and when they are not."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from milligpu.cluster.node_conditions import NodeCondition, NodeConditionType, wanted_conditions
from milligpu.cluster.node_constraints import NodeFacts
from milligpu.cluster.observed import ObservedNode
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder, NodeEvent, event_body
from milligpu.model.gpu import Gpu, GpuState, Node
from milligpu.model.reasons import EventReason
from milligpu.model.units import Mib
from milligpu.scheduler import node_conditions
from milligpu.scheduler.node_conditions import AGAIN_S, SETTLE_S, NodeConditions

GPU = Gpu("GPU-1", "A100", Mib(40960))
AGENT, HEALTH = NodeConditionType.AGENT_READY, NodeConditionType.GPUS_HEALTHY


class Writing:
    """A node's conditions, a clock, and an API server that takes what is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_EVERY_S", "_RETRY_S", "_LOOK_S"):
            monkeypatch.setattr(node_conditions, name, 0.0)
        self.now = 100.0
        self.leads = True
        self.failures: list[Exception] = []
        self.conditions: dict[str, NodeCondition] = {}
        self.sent: list[dict[str, Any]] = []
        self.events: list[NodeEvent] = []
        self.writer = NodeConditions(
            cast(ApiClient, self),
            cast(EventRecorder, self),
            lambda: self.leads,
            lambda: self.now,
            lambda: datetime.fromtimestamp(self.now, UTC),
        )

    async def send(self, method: str, path: str, body: dict[str, Any], **_more: object) -> bytes:
        assert (method, path) == ("PATCH", "/api/v1/nodes/n1/status")
        if self.failures:
            raise self.failures.pop(0)
        (condition,) = body["status"]["conditions"]
        self.sent.append(condition)
        kind, since = NodeConditionType(condition["type"]), condition["lastTransitionTime"]
        good = condition["status"] == "True"
        self.conditions[kind] = NodeCondition(kind, good, condition["reason"], condition["message"], since)
        return b"{}"

    def record(self, event: NodeEvent, **_more: object) -> bool:
        self.events.append(event)
        return True

    def shows(self, gpus: list[Gpu], ready: bool | None, *, later_s: float = 0.0) -> list[tuple[str, bool]]:
        """The watch shows the node so; what is written once the time has gone by."""
        self.sent.clear()
        self._put(gpus, ready)
        self.now += later_s
        asyncio.run(self._run())
        self._put(gpus, ready)
        return [(str(each["type"]), each["status"] == "True") for each in self.sent]

    def _put(self, gpus: list[Gpu], ready: bool | None) -> None:
        wanted = wanted_conditions(gpus, ready)
        node, present = Node("n1", tuple(gpus)), tuple(self.conditions.values())
        self.writer.put(ObservedNode(node, NodeFacts("n1", {}, ()), "", "u1", present, wanted))

    async def _run(self) -> None:
        task = asyncio.create_task(self.writer.run())
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    return Writing(monkeypatch)


def test_an_agent_that_is_gone_is_written_once_with_an_event_and_so_is_its_return(writing: Writing) -> None:
    assert writing.shows([GPU], True) == [(AGENT, True), (HEALTH, True)]
    assert writing.shows([GPU], True) == []
    assert writing.events == []
    assert writing.shows([GPU], False, later_s=SETTLE_S) == [(AGENT, False)]
    assert writing.sent[0]["lastTransitionTime"] == "1970-01-01T00:01:40Z"
    assert writing.shows([GPU], False, later_s=SETTLE_S) == []
    assert writing.shows([GPU], True) == [(AGENT, True)]
    assert [each.reason for each in writing.events] == [EventReason.AGENT_AWAY, EventReason.AGENT_READY]
    assert [each.normal for each in writing.events] == [False, True]


def test_a_kubelet_that_restarts_is_no_reason_for_an_alarm(writing: Writing) -> None:
    writing.shows([GPU], True)
    assert writing.shows([GPU], False, later_s=SETTLE_S - 1) == []
    assert writing.shows([GPU], True) == []
    assert writing.events == []


def test_an_unhealthy_gpu_is_written_at_once_and_changing_words_are_not(writing: Writing) -> None:
    def hot(degrees: int) -> list[Gpu]:
        return [Gpu("GPU-1", "A100", Mib(1), state=GpuState.UNHEALTHY, message=f"too hot: {degrees}")]

    writing.shows([GPU], True)
    assert writing.shows(hot(97), True) == [(HEALTH, False)]
    assert writing.events[0].reason is EventReason.GPU_UNHEALTHY
    since = writing.sent[0]["lastTransitionTime"]
    assert writing.shows(hot(98), True, later_s=1.0) == []
    assert writing.shows(hot(99), True, later_s=AGAIN_S) == [(HEALTH, False)]
    assert writing.sent[0]["lastTransitionTime"] == since
    assert writing.shows([GPU], True) == [(HEALTH, True)]
    assert writing.events[-1].normal


def test_nothing_is_written_by_an_instance_that_no_longer_leads(writing: Writing) -> None:
    writing.leads = False
    assert writing.shows([GPU], True) == []


def test_a_refused_write_is_repeated(writing: Writing) -> None:
    writing.failures.append(ApiRefused("PATCH", 403, "old permissions"))
    assert (AGENT, True) in writing.shows([GPU], True)


def test_an_event_on_a_node_is_where_kubectl_describe_looks_for_it() -> None:
    body: Any = event_body(NodeEvent("n1", "u1", EventReason.AGENT_AWAY, "Watch", "gone"), "c", "i")
    assert body["metadata"]["namespace"] == "default"
    assert body["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}
