"""Preemption by the leader: pods leave a GPU for one of higher priority, or for the owner of what was lent to them.

kube-scheduler counts a node's totals, and does not preempt where they seem to have room. Here victims are chosen
per GPU (`cluster.preemption`). Every eviction is tried without effect first, so that a disruption budget stops all
of them or none. What the victims leave is kept for the pod until it is bound, gone, or a minute has passed.
"""

import asyncio
from collections.abc import Callable, Iterator

import structlog

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.preemption import MayLeave, choose_node, evicted_with, lower_priority
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import METADATA_ONLY, ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef

_LOOK_S = 0.5
# Most pods that do not fit at once fit a moment later, and need nobody's place.
_PATIENCE_S = 1.0
# After an eviction was refused, as by a disruption budget, the pod waits this long before another try.
_AGAIN_S = 30.0
# Where nobody may leave now, it is looked again this much later.
_LATER_S = 5.0
# Pods that are looked at in one round; each may take some milliseconds on a large cluster.
_AT_ONCE = 8
# Nodes that are looked at for one pod. On a large cluster the first of them are as good as any other.
_NODES_MAX = 64
_NOT_FOUND = 404
_TOPIC = "preempted"

log = structlog.get_logger()


class Preemptor:
    """Evicts pods for those that must not wait."""

    def __init__(
        self,
        api: ApiClient,
        state: ClusterState,
        events: EventRecorder,
        unplaceable: Callable[[], list[PodEntry]],
        reclaims: Callable[[], list[tuple[PodEntry, MayLeave]]],
        *,
        valid: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`unplaceable` are pods that fit nowhere; `reclaims` are first in their queues, with who may leave."""
        self._api = api
        self._state = state
        self._events = events
        self._unplaceable = unplaceable
        self._reclaims = reclaims
        self._valid = valid
        self._now = now
        self._not_before: dict[str, float] = {}

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._not_before.pop(uid, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for entry, may_leave in self._asking()[:_AT_ONCE]:
                if self._due(entry):
                    await self._preempt(entry, may_leave)

    def _asking(self) -> list[tuple[PodEntry, MayLeave]]:
        """The pods for which others may leave, the most important first."""
        waiting = [entry for entry in self._unplaceable() if not entry.gated and self._due(entry)]
        if waiting:
            lowest = min((each.spec.priority for each in self._holders()), default=0)
            waiting = [entry for entry in waiting if entry.spec.priority > lowest]
        asking = [(entry, lower_priority(entry.spec)) for entry in waiting]
        asking += [each for each in self._reclaims() if self._due(each[0])]
        return sorted(asking, key=lambda each: (-each[0].spec.priority, each[0].number))

    def _holders(self) -> Iterator[PodEntry]:
        """The bound pods that hold GPUs."""
        for uid in self._state.placer.snapshot.holdings:
            entry = self._state.entry(uid)
            if entry is not None and entry.stage is PodStage.BOUND:
                yield entry

    def _due(self, entry: PodEntry) -> bool:
        uid, now = entry.spec.pod.uid, self._now()
        return (
            entry.stage is PodStage.WAITING
            and entry.seen
            and entry.spec.preempts
            and entry.spec.group is None
            and self._state.entry(uid) is entry
            and self._state.reservations.preemption_of(uid) is None
            and entry.since <= now - _PATIENCE_S
            and now >= self._not_before.get(uid, now)
        )

    async def _preempt(self, entry: PodEntry, may_leave: MayLeave) -> None:
        spec = entry.spec
        if self._state.fits(spec):
            return
        nodes = self._nodes(entry, may_leave)
        chosen = choose_node(self._state, spec, nodes, may_leave)
        if chosen is None:
            self._not_before[spec.pod.uid] = self._now() + _LATER_S
            return
        node, victims = chosen
        chosen_pods = [self._state.pods[uid] for uid in victims if not self._state.pods[uid].leaving]
        pods = [*chosen_pods, *evicted_with(self._state, victims)]
        self._state.reservations.begin_preemption(spec, node, victims)
        try:
            for each in pods:
                await self._evict(each.spec.pod, dry=True)
            for each in pods:
                if not self._valid():
                    return
                await self._evict(each.spec.pod, dry=False)
                self._tell(each, entry, chosen=each in chosen_pods)
        except Unavailable as error:
            self._not_before[spec.pod.uid] = self._now() + _AGAIN_S
            self._state.reservations.end_preemption(spec.pod.uid)
            log.info("Could not preempt", pod=str(spec.pod), node=node, error=error.message)

    def _nodes(self, entry: PodEntry, may_leave: MayLeave) -> list[str]:
        """The nodes on which anybody may leave."""
        admitted = set(self._state.nodes.admitted(entry.spec.constraints))
        found = dict.fromkeys(
            each.node for each in self._holders() if each.node in admitted and (each.leaving or may_leave(each))
        )
        return list(found)[:_NODES_MAX]

    async def _evict(self, pod: PodRef, *, dry: bool) -> None:
        options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
        if dry:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        try:
            await self._api.send("POST", path, body, accept=METADATA_ONLY)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise

    def _tell(self, victim: PodEntry, entry: PodEntry, *, chosen: bool) -> None:
        """Say why a pod was evicted: for its own place, or because its group has too few pods left."""
        if victim.spec.priority < entry.spec.priority:
            why = f"pod {entry.spec.pod} has priority {entry.spec.priority}, and this one {victim.spec.priority}"
            prevented = "a PriorityClass that is not lower"
        else:
            why = f"queue {entry.spec.queue} takes back for pod {entry.spec.pod} what it lent"
            prevented = f"a larger guarantee of queue {victim.spec.queue}"
        if not chosen and victim.spec.group is not None:
            why = f"its group {victim.spec.group.name} has too few pods left: {why}"
        message = f"evicted from {victim.node}: {why}; {prevented} would have prevented it"
        event = PodEvent(victim.spec.pod, EventReason.PREEMPTED, "Preempting", message)
        self._events.record(event, topic=_TOPIC)
        if self._state.entry(event.uid) is None:
            self._events.forget(event.uid)  # its end was seen during the eviction
        log.info("Preempted pod", pod=str(victim.spec.pod), node=victim.node, message=message, uid=event.uid)
