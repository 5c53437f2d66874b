"""Conditions and events on nodes whose agent is away or whose GPUs are unhealthy, written by the leader."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from milligpu.cluster.node_conditions import NodeCondition, NodeConditionType
from milligpu.cluster.observed import ObservedNode
from milligpu.kube.api import METADATA_ONLY, STRATEGIC_PATCH, ApiClient
from milligpu.kube.events import EventRecorder, NodeEvent
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import EventReason

# A kubelet reports a changed status every 10 s by default: until then a node whose GPUs are offered again, or whose
# kubelet restarted, looks like one without an agent.
SETTLE_S = 15.0
# How often a condition is written again when only its message changed, as one with a temperature often does.
AGAIN_S = 60.0
_LOOK_S = 1.0
# All of 5,000 nodes within five minutes of the first start, at a rate that leaves the API server to the binds.
_EVERY_S = 0.05
# While the API server is away, or does not permit it.
_RETRY_S = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A condition that the Node object does not have yet, and since when it should."""

    wanted: NodeCondition
    present: NodeCondition | None
    since: float


class NodeConditions:
    """Keeps the conditions of all nodes as the cluster state has them."""

    def __init__(
        self,
        api: ApiClient,
        events: EventRecorder,
        valid: Callable[[], bool],
        now: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        """`valid` says whether this instance still leads; `wall` is the time of day in UTC."""
        self._api = api
        self._events = events
        self._valid = valid
        self._now = now
        self._wall = wall
        self._uids: dict[str, str] = {}
        self._pending: dict[tuple[str, NodeConditionType], _Pending] = {}

    def put(self, observed: ObservedNode) -> None:
        """Take over the conditions that a node has and those that it should have."""
        name = observed.node.name
        self._uids[name] = observed.uid
        present = {each.type: each for each in observed.conditions}
        wanted = {each.type: each for each in observed.wanted}
        for kind in NodeConditionType:
            key, should = (name, kind), wanted.get(kind)
            if should is None or should.agrees(present.get(kind)):
                self._pending.pop(key, None)
                continue
            before = self._pending.get(key)
            since = before.since if before is not None and before.wanted.good == should.good else self._now()
            self._pending[key] = _Pending(should, present.get(kind), since)

    def drop(self, name: str) -> None:
        """Forget a node that is gone."""
        for kind in NodeConditionType:
            self._pending.pop((name, kind), None)
        self._events.forget(self._uids.pop(name, ""))

    async def run(self) -> None:
        while True:
            for key in self._due():
                pending = self._pending.get(key)
                if pending is not None and self._valid():
                    await self._write(key, pending)
            await asyncio.sleep(_LOOK_S)

    def _due(self) -> list[tuple[str, NodeConditionType]]:
        """Return what is to be written now, bad news first."""
        now = self._now()
        found = [key for key, each in self._pending.items() if each.since <= now - _patience_s(each)]
        return sorted(found, key=lambda key: self._pending[key].wanted.good)

    async def _write(self, key: tuple[str, NodeConditionType], pending: _Pending) -> None:
        node, kind = key
        wanted, present = pending.wanted, pending.present
        since = _time(self._wall() - timedelta(seconds=self._now() - pending.since))
        if present is not None and present.good == wanted.good:
            since = present.since
        condition = {
            "type": str(kind),
            "status": str(wanted.good),
            "reason": wanted.reason,
            "message": wanted.message,
            "lastTransitionTime": since,
            "lastHeartbeatTime": _time(self._wall()),
        }
        try:
            await self._api.send(
                "PATCH",
                f"/api/v1/nodes/{node}/status",
                {"status": {"conditions": [condition]}},
                kind=STRATEGIC_PATCH,
                accept=METADATA_ONLY,
            )
        except Unavailable as error:
            log.warning("Could not write node condition", node=node, condition=str(kind), error=error.message)
            await asyncio.sleep(_RETRY_S)
            return
        if self._pending.get(key) == pending:
            del self._pending[key]
        if not wanted.good or (present is not None and not present.good):
            self._report(node, wanted)
        await asyncio.sleep(_EVERY_S)

    def _report(self, node: str, condition: NodeCondition) -> None:
        event = NodeEvent(
            node,
            self._uids.get(node, ""),
            EventReason(condition.reason),
            "Watch",
            condition.message,
            normal=condition.good,
        )
        if self._events.record(event, topic=str(condition.type), again_s=AGAIN_S):
            say = log.info if condition.good else log.warning
            say("Node condition changed", node=node, reason=condition.reason, message=condition.message)


def _patience_s(pending: _Pending) -> float:
    """Seconds for which a condition must hold before it is written, because some changes last only a moment."""
    wanted, present = pending.wanted, pending.present
    if present is not None and present.good == wanted.good:
        return AGAIN_S
    return SETTLE_S if wanted.type is NodeConditionType.AGENT_READY and not wanted.good else 0.0


def _time(when: datetime) -> str:
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
