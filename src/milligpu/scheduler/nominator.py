"""Nominations: for waiting pods, the place that is best for the whole cluster, chosen ahead of kube-scheduler.

The node is written into the pod's `status.nominatedNodeName`. kube-scheduler then tries that node first and need
not look at any other, which at 5,000 nodes is most of its work. The write also makes it retry a pod that it had
given up on. A nomination is a hint: a pod without one, or whose node does not suit, is scheduled in the ordinary
way. Pods with preferences, and pods that depend on other pods or volumes, get none, because a nominated node is
taken without a look at the others; they are only retried. The write is one more request per pod, so it is left out
while binds pile up at the API server: then kube-scheduler is not the bottleneck.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import structlog

from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.reservations import HOLD_OFF_MAX_S, HOLD_OFF_S, PATIENCE_S
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, ApiClient
from milligpu.model.attach import server_of_node
from milligpu.model.errors import BadRequest, Unavailable

# Pods that kube-scheduler is about to ask for need no nomination: new ones, and the next of a burst.
HEAD_START_S = 0.03
NEXT_IN_LINE = 16
# As many as keep the API server busy together with the binds.
IN_FLIGHT = 16
# Thousands of pods may wait: they are sorted once in this time, and not for each of them.
PASS_S = 0.25
# After capacity was released, a pod that is held off may be nominated this soon.
AGAIN_S = 1.0
# A nomination that this instance did not write may be kube-scheduler's own, for a pod that waits until others end,
# or an earlier leader's, which kube-scheduler may be about to use. If nothing is kept for it after this long, it is
# cleared: in kube-scheduler's sums it keeps pods of the same priority from the node.
STALE_OTHERS_S = 5.0

_KEPT = frozenset({PodStage.NOMINATED, PodStage.RESERVED, PodStage.BIND_UNKNOWN})

log = structlog.get_logger()


class Nominator:
    """Nominates waiting pods whenever pods or capacity changed."""

    def __init__(
        self,
        api: ApiClient,
        state: ClusterState,
        schedulers: Collection[str],
        busy: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`schedulers` are the kube-schedulers with the extender; only their pods are nominated.

        `busy` says whether binds pile up at the API server.
        """
        self._busy = busy
        self._api = api
        self._state = state
        self._schedulers = frozenset(schedulers)
        self._now = now
        self._news = asyncio.Event()
        self._patches: set[asyncio.Task[None]] = set()
        self._failed: set[int] = set()
        self._failed_at = -1
        self._looked_at = (-1, -1)
        self.unplaceable: dict[str, PodEntry] = {}
        """Pods that fit nowhere, by uid; `WaitingEvents` explains them."""

    def on_change(self) -> None:
        """Start a pass if pods began to wait, or capacity was released, since the last one."""
        if self._looked_at != (self._state.pods.waiting_version, self._state.pods.capacity_version):
            self._news.set()

    def on_tick(self) -> None:
        """Schedule another pass, because reservations may have expired."""
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._looked_at = self._state.pods.waiting_version, self._state.pods.capacity_version
            while self._state.reservations.inherited:
                entry = self._state.reservations.inherited.pop()
                if entry.stage in _KEPT:
                    self._start(self._nudge(entry, entry.node))
            self._wake_unknown()
            if await self._nominate_all():
                await asyncio.sleep(HEAD_START_S)
                self._news.set()

    def _wake_unknown(self) -> None:
        """Make kube-scheduler retry pods whose bind had no answer: the same bind again settles the matter."""
        now = self._now()
        for entry in self._state.binds.unknown():
            waits = entry.seen and not entry.gated and entry.spec.scheduler in self._schedulers
            if waits and now >= entry.held_off_at + max(entry.hold_off_s, HOLD_OFF_S):
                self._state.reservations.hold_off(entry)
                self._start(self._patch(entry, entry.node))

    async def _nominate_all(self) -> bool:
        """Nominate waiting pods by priority; True if some are too young and need another pass."""
        waiting, until = self._state.waiting(), self._now() + PASS_S
        await self._clear_stale(waiting)
        young = self._busy() and bool(waiting)
        if young:
            # In a burst thousands wait, and kube-scheduler will ask about them anyway.
            waiting = [each for each in waiting if each.refused_by_filter]
        for entry in sorted(waiting, key=lambda each: -each.spec.priority):
            while len(self._patches) >= IN_FLIGHT:
                await asyncio.wait(self._patches, return_when=asyncio.FIRST_COMPLETED)
            if self._now() >= until and self._news.is_set():
                return False  # there may be pods of a higher priority by now
            young |= self._look_at(entry)
        return young

    def _look_at(self, entry: PodEntry) -> bool:
        """Nominate the pod if possible; True if it is too young."""
        now = self._now()
        if self._failed_at != self._state.pods.capacity_version:
            self._failed_at = self._state.pods.capacity_version
            self._failed.clear()
            self.unplaceable.clear()
        if entry.stage is not PodStage.WAITING or self._state.entry(entry.spec.pod.uid) is not entry:
            return False  # kube-scheduler asked first, or the pod is gone
        if entry.spec.shape in self._failed:
            self.unplaceable.setdefault(entry.spec.pod.uid, entry)
        elif self._ours(entry, now):
            if self._soon(entry, now):
                return True
            self._nominate(entry)
        return False

    def _ours(self, entry: PodEntry, now: float) -> bool:
        return (
            entry.seen
            and not entry.gated
            and entry.spec.group is None
            and entry.spec.scheduler in self._schedulers
            and (entry.refused_by_filter or not entry.other_reason)
            and not self._held_off(entry, now)
        )

    def _held_off(self, entry: PodEntry, now: float) -> bool:
        if self._state.reservations.is_unused(entry):
            return now < entry.held_off_at + HOLD_OFF_MAX_S
        changed = entry.held_off_version != self._state.pods.capacity_version
        return now < entry.held_off_at + (AGAIN_S if changed else entry.hold_off_s)

    def _soon(self, entry: PodEntry, now: float) -> bool:
        if entry.since > now - HEAD_START_S or (self._busy() and not entry.refused_by_filter):
            return True
        last, asked_at = self._state.pods.last_asked
        return last < entry.number <= last + NEXT_IN_LINE and asked_at > now - PATIENCE_S

    def _nominate(self, entry: PodEntry) -> None:
        nominable = self._state.is_nominable(entry.spec)
        reservations = self._state.reservations
        try:
            grant = reservations.nominate(entry) if nominable else reservations.find(entry)
        except BadRequest:
            grant = None  # its event says what is wrong
        if grant is None:
            self._failed.add(entry.spec.shape)
            self.unplaceable.setdefault(entry.spec.pod.uid, entry)
        elif not nominable:
            if entry.refused_by_filter or entry.given_up:
                reservations.hold_off(entry)
                entry.nudged = grant.node
                self._start(self._nudge(entry, grant.node))
        elif entry.given_up and not entry.refused_by_filter:
            self._start(self._nudge(entry, grant.node))
        else:
            self._start(self._patch(entry, grant.node))

    def _start(self, patch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(patch)
        self._patches.add(task)
        task.add_done_callback(self._patches.discard)

    async def _patch(self, entry: PodEntry, node: str) -> None:
        try:
            if entry.nominated == node:
                # Writing the same node again would change nothing, and so trigger no retry.
                entry.cleared_here = True
                await self._write(entry, "")
            if entry.node == node and entry.stage in _KEPT:
                entry.nominated_here = node
                await self._write(entry, node)
        except Unavailable as error:
            self._state.reservations.withdraw(entry)
            log.info("Could not write nomination", pod=str(entry.spec.pod), node=node, error=error.message)
            self._tell_again(entry)

    def _tell_again(self, entry: PodEntry) -> None:
        """Try again, with the next tick, to tell kube-scheduler of a place that preemption freed."""
        if entry.stage is PodStage.RESERVED:
            self._state.reservations.inherited.append(entry)

    async def _clear_stale(self, waiting: list[PodEntry]) -> None:
        """Clear nominations that nothing is kept for, before others are nominated.

        In kube-scheduler's sums they keep pods of the same priority from the node.
        """
        found = [entry for entry in waiting if entry.nominated and self._is_stale(entry, self._now())]
        for entry in found[:IN_FLIGHT]:
            self._start(self._clear(entry))
        if found:
            await asyncio.wait(self._patches)

    def _is_stale(self, entry: PodEntry, now: float) -> bool:
        entry.stale_since = min(now, entry.stale_since)
        stale_s = 0.0 if entry.nominated == entry.nominated_here else STALE_OTHERS_S
        preemption = self._state.reservations.preemption_of(entry.spec.pod.uid)
        if preemption is not None and preemption.victims:
            return False  # it waits until others have ended
        return now - entry.stale_since >= stale_s and entry.spec.scheduler in self._schedulers

    async def _clear(self, entry: PodEntry) -> None:
        try:
            await self._write(entry, "")
        except Unavailable as error:
            log.info("Could not clear nomination", pod=str(entry.spec.pod), error=error.message)
        else:
            entry.nominated, entry.stale_since = "", FOREVER
            # Pods for which kube-scheduler saw no room may fit now.
            self._state.pods.capacity_version += 1

    async def _nudge(self, entry: PodEntry, node: str) -> None:
        """Make kube-scheduler look at all nodes again for a pod that it has given up on.

        A written nomination makes it retry a pod that filter refused. A pod that it refused by a node's totals is
        retried only when a nomination is removed, because that may release what the totals lacked. Its own hint for
        nodes whose totals grew overlooks pods that ask for resources that only the service counts.
        """
        try:
            await self._write(entry, node)
            entry.cleared_here = True
            await self._write(entry, "")
        except Unavailable as error:
            self._state.reservations.withdraw(entry)
            log.info("Could not make kube-scheduler retry pod", pod=str(entry.spec.pod), error=error.message)
            self._tell_again(entry)

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self.unplaceable.pop(uid, None)

    async def _write(self, entry: PodEntry, node: str) -> None:
        pod = entry.spec.pod
        node = server_of_node(node) or node  # no node has this name: it only makes kube-scheduler try again
        await self._api.send(
            "PATCH",
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status",
            {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}},
            kind=MERGE_PATCH,
            accept=METADATA_ONLY,
        )
