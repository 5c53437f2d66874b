"""Groups: the pods of a group have their turn together, and enough of them start or none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from milligpu.model.grant import Grant
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.queues.order import QueuedPod, WaitingLines
from milligpu.queues.places import PlaceFinder


@dataclass(frozen=True, slots=True)
class GroupTurn:
    """Waiting pods of which some have to start together; a pod of no group is alone."""

    pods: Sequence[QueuedPod]
    """In the order in which they came."""
    needed: int = 1
    """How many of them have to start together, next to those of the group that have a place."""

    @property
    def is_complete(self) -> bool:
        """Whether all pods exist that have to start together."""
        return len(self.pods) >= self.needed

    @property
    def key(self) -> tuple[object, float]:
        """Turns with equal keys fit in the same places at the same times."""
        first, *others = self.pods
        return first.key if not others else ((self.needed, *(each.key for each in self.pods)), first.time_limit_s)

    @property
    def together(self) -> QueuedPod:
        """What those that have to start together count against quotas, as one pod."""
        first = self.pods[: self.needed]
        milli, mib = sum(each.milli for each in first), sum(each.mib for each in first)
        return replace(first[0], milli=Milli(milli), mib=Mib(mib))

    def place(self, placer: Placer, places: PlaceFinder) -> list[tuple[QueuedPod, Grant]]:
        """Find places for as many pods as have to start, each next to those before it; none if one is missing."""
        found: list[tuple[QueuedPod, Grant]] = []
        try:
            for pod in self.pods:
                grant = places.place(pod) if len(found) < self.needed else None
                if grant is not None:
                    placer.snapshot.take(placer.holding(pod.request, grant), force=True)
                    found.append((pod, grant))
        finally:
            for pod, _ in found:
                placer.release(pod.name)
        return found if len(found) == self.needed else []


def turn_of(lines: WaitingLines, pod: QueuedPod) -> GroupTurn:
    """The turn of a pod and its group. If enough of the group started, the others start one by one."""
    needed = 1 if pod.group is None else pod.group_min_count - lines.placed[pod.group] - pod.succeeded
    if pod.group is None or needed <= 0:
        return GroupTurn((pod,))
    return GroupTurn(lines.group_members(pod), needed)
