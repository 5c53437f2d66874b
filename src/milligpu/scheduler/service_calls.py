"""Calls for shares: which pods of services give back loans, or lend their guarantee, so that a waiting pod fits.

A call lasts until its pod has a place. So the services do not take back what they gave before kube-scheduler is
there, and a pod that something else keeps from starting does not hold their shares back for long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.loans import describe_memory, lenders_for
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.grant import Grant
from milligpu.model.reasons import ServiceReason

# Time for the resizes, kube-scheduler, and a kubelet that reports freed slots late.
CALL_S = 30.0
AGAIN_S = 60.0
# kube-scheduler gives up on a pod that a node's total seems too small for, and does not notice that the total grew.
_RETRY_S = 2.0
# In a busy cluster the oldest come first; each look counts every borrower's node again.
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class ShareCall:
    """What pods give so that one waiting pod fits."""

    returns: frozenset[str]
    """Pods that give back their loans."""
    lends: frozenset[str]
    """Old pods of the same service that lend all of their guarantee."""
    node: str
    since: float


class ShareCalls:
    """Follows the pods that wait."""

    def __init__(self, state: ClusterState, now: Callable[[], float]) -> None:
        self._state = state
        self._now = now
        self.calls: dict[str, ShareCall] = {}
        self._not_before: dict[str, float] = {}
        self._handed: dict[str, float] = {}
        """The pods that have a place now, with when kube-scheduler is told so again."""
        self.problems: dict[str, tuple[ServiceReason, str]] = {}
        """Why new pods of updates have no place, by uid, with what they lack."""

    @property
    def returning(self) -> frozenset[str]:
        return frozenset(uid for each in self.calls.values() for uid in each.returns)

    @property
    def lending(self) -> frozenset[str]:
        return frozenset(uid for each in self.calls.values() for uid in each.lends)

    def look(self, borrowers: Mapping[str, Grant], old_pods: Mapping[str, Mapping[str, Grant]]) -> None:
        """Call for what waiting pods need.

        `borrowers` have loans, with their grants without them. `old_pods` are, by the uid of a new pod that waits,
        the pods of the former version, with grants that guarantee nothing.
        """
        waiting = {each.spec.pod.uid: each for each in self._state.waiting() if _waits_for_gpu(each)}
        now = self._now()
        for uid, call in tuple(self.calls.items()):
            if uid not in waiting or now - call.since > CALL_S:
                del self.calls[uid]
                self._not_before[uid] = now + AGAIN_S
        for uid in self._handed.keys() & waiting.keys():
            del self._handed[uid]  # it had a place, and kube-scheduler did not use it
            self._not_before[uid] = now + AGAIN_S
        self._not_before = {uid: at for uid, at in self._not_before.items() if uid in waiting and now < at}
        before, self.problems = self.problems, {}
        if not borrowers and not old_pods:
            return
        looked = sorted(waiting.values(), key=lambda each: (-each.spec.priority, each.number))[:_LOOKED_AT]
        for entry in looked:
            uid = entry.spec.pod.uid
            if uid not in self.calls and uid not in self._not_before and not self._state.fits(entry.spec):
                self._call(entry, borrowers, old_pods.get(uid, {}), before.get(uid))

    def _call(
        self,
        entry: PodEntry,
        borrowers: Mapping[str, Grant],
        old: Mapping[str, Grant],
        before: tuple[ServiceReason, str] | None,
    ) -> None:
        uid = entry.spec.pod.uid
        givers = lenders_for(self._state, entry.spec, borrowers)
        if not givers and old:
            givers = lenders_for(self._state, entry.spec, {**borrowers, **old})
            if not givers:
                self.problems[uid] = self._problem(entry, borrowers, old, before)
                return
        if givers:
            lends = frozenset(givers) & old.keys()
            node = self._state.pods[givers[0]].node
            self.calls[uid] = ShareCall(frozenset(givers) - lends, lends, node, self._now())

    def _problem(
        self,
        entry: PodEntry,
        borrowers: Mapping[str, Grant],
        old: Mapping[str, Grant],
        before: tuple[ServiceReason, str] | None,
    ) -> tuple[ServiceReason, str]:
        """Say whether the new pod would fit if the old ones were gone: then it is their memory that it lacks.

        To explain why a pod fits nowhere takes a while in a large cluster; it is done once.
        """
        if lenders_for(self._state, entry.spec, {**borrowers, **dict.fromkeys(old)}):
            return ServiceReason.MEMORY_HOLDS_ONE, describe_memory(self._state, entry.spec, old)
        if before is not None and before[0] is ServiceReason.NO_ROOM:
            return before
        return ServiceReason.NO_ROOM, explain_waiting(self._state, entry.spec)

    def hand_over(self) -> None:
        """Reserve what was given for the pods that it was given for, before anybody else asks."""
        for uid, due in tuple(self._handed.items()):
            entry = self._state.entry(uid)
            if entry is None or entry.stage is PodStage.BOUND:
                del self._handed[uid]
            elif entry.stage is PodStage.RESERVED and self._now() >= due:
                self._handed[uid] = self._now() + _RETRY_S
                self._state.reservations.inherited.append(entry)
        for uid, call in self.calls.items():
            entry = self._state.entry(uid)
            waits = entry is not None and entry.stage is PodStage.WAITING and not entry.spec.takes_turns
            if entry is not None and waits:
                self._state.reservations.hand_over(entry, call.node)
                if entry.stage is PodStage.RESERVED:
                    self._handed[uid] = self._now() + _RETRY_S


def _waits_for_gpu(entry: PodEntry) -> bool:
    """Whether a GPU is what the pod waits for, as far as is known."""
    gated = entry.gated and not entry.queued
    return entry.seen and not gated and not entry.other_reason and not entry.spec.is_remote
