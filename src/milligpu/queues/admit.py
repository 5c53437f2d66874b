"""Which waiting pods start now.

Pods are tried in their order. The first pod of a queue that does not fit gets the room that will be free first.
Every pod after it may start only where that room stays free: beside it, or in it if the pod ends before. So pods
start in order or early, and none makes the first of its queue late. A group has its turn when its first pod has.
"""

from collections import deque
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

from milligpu.model.grant import Grant
from milligpu.model.reasons import QueueReason
from milligpu.placement.decide import Placer
from milligpu.queues.group_turn import GroupTurn, turn_of
from milligpu.queues.opening import Opening, find_opening, kept_room
from milligpu.queues.order import FOREVER, QueuedPod, WaitingLines
from milligpu.queues.places import PlaceFinder

# Searches for room in one queue at a time. Pods that ask for the same as one that found none cost no search.
SEARCHES_MAX = 64


@dataclass(frozen=True, slots=True)
class Started:
    """A pod that starts now, and where."""

    pod: QueuedPod
    grant: Grant
    early: bool
    """Whether it starts before a pod that was in front of it."""


class Admission:
    """Decides over a placer, and keeps what it decided in it; the caller says when pods end."""

    def __init__(
        self,
        placer: Placer,
        lines: WaitingLines,
        capacity: int,
        *,
        places: PlaceFinder | None = None,
        ends: MutableMapping[str, float] | None = None,
    ) -> None:
        """`capacity` is all milli-GPU of the cluster; `ends` has the latest end of each pod that runs already."""
        self.placer = placer
        self._places = places or PlaceFinder(placer)
        self.lines = lines
        self.openings: dict[str, Opening] = {}
        """The room of every pod that is first in its queue and does not fit."""
        self._capacity = capacity
        self._ends: MutableMapping[str, float] = {} if ends is None else ends
        self._held = 0
        self.refused: set[tuple[object, float]] = set()
        """What was tried and fits nowhere; to be forgotten when capacity is released."""
        self.reasons: dict[str, QueueReason] = {}
        """Why pods that were looked at did not start, by uid."""

    def add(self, pod: QueuedPod) -> None:
        """A pod came."""
        self.placer.observe(pod.request)
        self.lines.add(pod)

    def end(self, pod: QueuedPod, now: float) -> None:
        """A running pod ended."""
        self.placer.release(pod.name)
        del self._ends[pod.name]
        self._held -= pod.milli
        self.lines.ended(pod, now)
        self.refused.clear()

    def start(self, now: float) -> Iterator[Started]:
        """Start all pods that may start now."""
        lines = {queue.name: deque(self.lines.line(queue, now)) for queue in self.lines.queues.leaves}
        heads = {name: line.popleft() for name, line in lines.items() if line}
        searched = dict.fromkeys(heads, 0)
        kept: list[QueuedPod] = []
        passed: set[str] = set()
        done: set[str] = set()
        try:
            while (queue := self.lines.next_queue(heads)) is not None:
                pod = heads.pop(queue.name)
                if pod.name not in done:
                    turn = turn_of(self.lines, pod)
                    searched[queue.name] += turn.key not in self.refused
                    started = self._try(turn, now, kept, first=queue.name not in passed)
                    yield from started
                    # Those of a group that did not have to start with the others are tried one by one.
                    done |= {each.pod.name for each in started} or {each.name for each in turn.pods}
                    if not started:
                        passed.add(queue.name)
                if lines[queue.name] and searched[queue.name] < SEARCHES_MAX:
                    heads[queue.name] = lines[queue.name].popleft()
        finally:
            for each in kept:
                self.placer.release(_kept_name(each))
            # A pod that is no longer first has no room that anybody goes around.
            self.openings = {each.name: self.openings[each.name] for each in kept}

    def _try(self, turn: GroupTurn, now: float, kept: list[QueuedPod], *, first: bool) -> list[Started]:
        reason = self._obstacle(turn)
        if reason is None and turn.key not in self.refused:
            found = turn.place(self.placer, self._places) or self._before_they_start(turn, now, kept)
            if found:
                return [self._started(pod, grant, now, early=not first) for pod, grant in found]
            self.refused.add(turn.key)
        for pod in turn.pods:
            self.reasons[pod.name] = reason or (QueueReason.NO_ROOM if first else QueueReason.WAITS_FOR_TURN)
        if reason is None and first:
            for pod in turn.pods[: turn.needed]:
                self._keep_room(pod, now, kept)
        return []

    def _obstacle(self, turn: GroupTurn) -> QueueReason | None:
        """Why pods may not start even where there is room; None if they may."""
        if not turn.is_complete:
            return QueueReason.GROUP_INCOMPLETE
        if self.lines.over_ceiling(turn.together) is not None:
            return QueueReason.CEILING
        return None if self._may_borrow(turn.together) else QueueReason.KEPT_FOR_OWNERS

    def _may_borrow(self, pod: QueuedPod) -> bool:
        kept = self.lines.kept_for_owners()
        return not kept or self.lines.within_guarantee(pod) or self._held + pod.milli + kept <= self._capacity

    def _before_they_start(
        self, turn: GroupTurn, now: float, kept: list[QueuedPod]
    ) -> list[tuple[QueuedPod, Grant]]:
        """Place pods into room that is kept for others, if they end before those start."""
        end = now + max(each.time_limit_s for each in turn.pods)
        late = [each for each in kept if end <= self.openings[each.name].at]
        if end == FOREVER or not late:
            return []
        rooms = [self.placer.release(_kept_name(each)) for each in late]
        try:
            return turn.place(self.placer, self._places)
        finally:
            for room in rooms:
                self.placer.snapshot.take(room, force=True)

    def _started(self, pod: QueuedPod, grant: Grant, now: float, *, early: bool) -> Started:
        self.lines.remove(pod)
        self.lines.started(pod, now)
        self.openings.pop(pod.name, None)
        self._ends[pod.name] = now + pod.time_limit_s
        self._held += pod.milli
        self.reasons.pop(pod.name, None)
        self._places.hold(pod, grant)
        return Started(pod, grant, early)

    def _keep_room(self, pod: QueuedPod, now: float, kept: list[QueuedPod]) -> None:
        opening = self.openings.get(pod.name)
        if opening is None or opening.at < now:
            opening = self._find_room(pod, now)
        if opening is None:
            return
        self.openings[pod.name] = opening
        room = kept_room(self.placer, pod.request, opening, self._ends, _kept_name(pod))
        self.placer.snapshot.take(room, force=True)
        kept.append(pod)

    def _find_room(self, pod: QueuedPod, now: float) -> Opening | None:
        """Find the earliest room of a pod; one of a group may have it now, and waits for the others."""
        grant = None if pod.group is None else self._places.place(pod)
        if grant is not None:
            return Opening(grant, now)
        return find_opening(self.placer, pod.request, self._ends, self._places.rows(pod))


def _kept_name(pod: QueuedPod) -> str:
    return f"room kept for {pod.name}"
