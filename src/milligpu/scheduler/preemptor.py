"""Preemption by the leader: pods yield to one of higher priority, or to the owner of what was lent to them.

kube-scheduler counts a node's totals, and does not preempt where they seem to have room. Here pods are chosen per
GPU (`cluster.preemption`). Pods with a floor are shrunk first, in place. Every eviction is tried without effect
before, so that a disruption budget stops all of it or nothing. What is freed is kept for the pod until it is bound,
gone, or a minute has passed.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.preemption import (
    PreemptionRule,
    choose_disruption,
    choose_for_group,
    evicted_with,
    lower_priority,
)
from milligpu.cluster.shrink import is_shrinkable, largest_share
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import METADATA_ONLY, ApiClient, ApiNotSent, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.errors import Unavailable
from milligpu.model.grant import Grant
from milligpu.model.reasons import EventReason
from milligpu.model.request import PodRef
from milligpu.model.units import show_milli
from milligpu.scheduler.resizer import Resizer

_LOOK_S = 0.5
# Most pods that do not fit at once fit a moment later, and need nobody's place.
_PATIENCE_S = 1.0
# A pod whose eviction was refused, as by a disruption budget, is left alone for this long.
_AGAIN_S = 30.0
# Where nobody may leave now, or somebody could not be evicted, it is looked again this much later.
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
        reclaims: Callable[[], list[tuple[list[PodEntry], PreemptionRule]]],
        *,
        resizer: Resizer,
        valid: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`unplaceable` are pods that fit nowhere; `reclaims` are first in their queues, alone or as a group."""
        self._api = api
        self._state = state
        self._events = events
        self._unplaceable = unplaceable
        self._reclaims = reclaims
        self._resizer = resizer
        self._valid = valid
        self._now = now
        self._not_before: dict[str, float] = {}
        self._kept_until: dict[str, float] = {}
        """Pods whose eviction was refused: others leave in their place."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Make room for pods that must not wait, the most important first."""
        for times in (self._not_before, self._kept_until):
            for gone in [uid for uid in times if self._state.entry(uid) is None]:
                del times[gone]
        for entries, rule in self._asking()[:_AT_ONCE]:
            if all(map(self._due, entries)):
                await (self._preempt(entries[0], rule) if len(entries) == 1 else self._preempt_for(entries, rule))

    def _asking(self) -> list[tuple[list[PodEntry], PreemptionRule]]:
        """The pods and groups for which others may leave, the most important first."""
        waiting = [
            each for each in self._unplaceable() if not each.gated and each.spec.group is None and self._due(each)
        ]
        if waiting:
            lowest = min((each.spec.priority for each in self._holders()), default=0)
            waiting = [entry for entry in waiting if entry.spec.priority > lowest]
        asking = [([entry], lower_priority(entry.spec)) for entry in waiting]
        asking += [each for each in self._reclaims() if all(map(self._due, each[0]))]
        return sorted(asking, key=lambda each: (-each[0][0].spec.priority, each[0][0].number))

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
            and self._state.entry(uid) is entry
            and self._state.reservations.preemption_of(uid) is None
            and entry.since <= now - _PATIENCE_S
            and now >= self._not_before.get(uid, now)
        )

    async def _preempt(self, entry: PodEntry, rule: PreemptionRule) -> None:
        spec = entry.spec
        if self._state.fits(spec):
            return
        allowed = self._without_kept(rule)
        chosen = choose_disruption(self._state, spec, self._nodes(entry, allowed), allowed)
        if chosen is None:
            self._not_before[spec.pod.uid] = self._now() + _LATER_S
            return
        victims = [self._state.pods[uid] for uid in chosen.victims if not self._state.pods[uid].leaving]
        pods = [*victims, *evicted_with(self._state, chosen.victims)]
        self._state.reservations.begin_preemption(spec, chosen.node, chosen.victims, chosen.shrunk)
        try:
            for each in pods:
                await self._try_eviction(each)
            for uid, grant in chosen.shrunk.items():
                if not self._is_wanted(spec.pod.uid):
                    return
                await self._shrink(self._state.pods[uid], grant, entry)
            self._state.reservations.end_shrinking(spec.pod.uid)
            await self._evict_all(pods, victims, entry)
        except Unavailable as error:
            self._give_up(entry, error)

    async def _preempt_for(self, entries: list[PodEntry], rule: PreemptionRule) -> None:
        """Make room for all of a group, or for none of it."""
        head, allowed = entries[0], self._without_kept(rule)
        room = choose_for_group(self._state, [each.spec for each in entries], self._nodes(head, allowed), allowed)
        if room is None or not room.victims:
            self._not_before[head.spec.pod.uid] = self._now() + _LATER_S
            return
        victims = [self._state.pods[uid] for uid in room.victims if not self._state.pods[uid].leaving]
        pods = [*victims, *evicted_with(self._state, room.victims)]
        self._state.reservations.begin_group_preemption(room.places, room.victims)
        try:
            for each in pods:
                await self._try_eviction(each)
            await self._evict_all(pods, victims, head)
        except Unavailable as error:
            self._give_up(head, error)

    async def _evict_all(self, pods: list[PodEntry], victims: list[PodEntry], entry: PodEntry) -> None:
        for each in pods:
            if not self._is_wanted(entry.spec.pod.uid):
                return
            node = each.node  # the watch may show the end of the pod before the answer comes
            await self._evict(each.spec.pod, dry=False)
            self._tell(each, node, entry, chosen=each in victims)

    def _give_up(self, entry: PodEntry, error: Unavailable) -> None:
        pod = entry.spec.pod
        self._not_before[pod.uid] = self._now() + _LATER_S
        self._state.reservations.end_preemption(pod.uid)
        log.info("Could not preempt", pod=str(pod), error=error.message)

    def _without_kept(self, rule: PreemptionRule) -> PreemptionRule:
        """The same rule, but for pods whose eviction was refused a while ago."""

        def may_leave(entry: PodEntry) -> bool:
            return self._may_ask(entry) and rule.may_leave(entry)

        return replace(rule, may_leave=may_leave)

    def _may_ask(self, entry: PodEntry) -> bool:
        return self._kept_until.get(entry.spec.pod.uid, 0.0) <= self._now()

    async def _try_eviction(self, entry: PodEntry) -> None:
        """Find out whether a pod may be evicted. If it may not, others are chosen in its place for a while."""
        try:
            await self._evict(entry.spec.pod, dry=True)
        except ApiRefused:
            self._kept_until[entry.spec.pod.uid] = self._now() + _AGAIN_S
            raise

    def _is_wanted(self, uid: str) -> bool:
        """Whether this instance still leads, and what is freed is still kept for the pod."""
        return self._valid() and self._state.reservations.preemption_of(uid) is not None

    def _nodes(self, entry: PodEntry, rule: PreemptionRule) -> list[str]:
        """The nodes on which anybody may be shrunk or leave."""
        admitted = set(self._state.nodes.admitted(entry.spec.constraints))
        found = dict.fromkeys(
            each.node
            for each in self._holders()
            if each.node in admitted and (each.leaving or rule.may_leave(each) or rule.may_shrink(each))
        )
        return list(found)[:_NODES_MAX]

    async def _shrink(self, yielding: PodEntry, grant: Grant, entry: PodEntry) -> None:
        """Shrink a pod, unless it is gone or another grant was written meanwhile."""
        held = yielding.grant
        if self._state.entry(yielding.spec.pod.uid) is not yielding or held is None or not is_shrinkable(yielding):
            raise ApiNotSent(f"{yielding.spec.pod} changed meanwhile")
        why, _ = self._reason(yielding, entry)
        was = f"it had {show_milli(largest_share(held))} GPU, and {why}"
        await self._resizer.shrink(yielding, grant, was)

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

    def _reason(self, yielding: PodEntry, entry: PodEntry) -> tuple[str, str]:
        """Why a pod yields to another one, and what would have prevented it."""
        if yielding.spec.priority < entry.spec.priority:
            why = f"pod {entry.spec.pod} has priority {entry.spec.priority}, and this one {yielding.spec.priority}"
            return why, "a PriorityClass that is not lower"
        why = f"queue {entry.spec.queue} takes back for pod {entry.spec.pod} what it lent"
        return why, f"a larger guarantee of queue {yielding.spec.queue}"

    def _tell(self, victim: PodEntry, node: str, entry: PodEntry, *, chosen: bool) -> None:
        """Say why a pod was evicted: for its own place, or because its group has too few pods left."""
        why, prevented = self._reason(victim, entry)
        if not chosen and victim.spec.group is not None:
            why = f"its group {victim.spec.group.name} has too few pods left: {why}"
        message = f"evicted from {node}: {why}; {prevented} would have prevented it"
        event = PodEvent(victim.spec.pod, EventReason.PREEMPTED, "Preempting", message)
        self._events.record(event, topic=_TOPIC)
        if self._state.entry(event.uid) is None:
            self._events.forget(event.uid)  # its end was seen during the eviction
        log.info("Preempted pod", pod=str(victim.spec.pod), node=node, message=message, uid=event.uid)
