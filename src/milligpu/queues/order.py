"""Who comes next: among queues by guarantee and weight, in a queue by user, and of a user who came first."""

from collections import Counter, deque
from dataclasses import dataclass, field

from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder, Quota
from milligpu.model.group import GroupKey
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement.fit import RequestKey
from milligpu.queues.usage import HALF_LIFE_S, DecayedUsage

FOREVER = float("inf")
_NOTHING = DecayedUsage()


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod that waits in a queue."""

    request: PodRequest
    queue: str
    user: str
    arrived: float
    milli: Milli
    """What it counts against quotas: of each GPU the larger part of compute and memory."""
    mib: Mib
    time_limit_s: float = FOREVER
    """How long it runs at most, if its author said so."""
    shape: int | None = None
    """Equal numbers fit in the same places; None where only the request decides."""
    succeeded: int = 0
    """How many pods of its group have succeeded while it waited."""

    @property
    def group(self) -> GroupKey | None:
        """The group that the pod starts together with."""
        group = self.request.group
        return None if group is None else (self.request.pod.namespace, group.name)

    @property
    def group_min_count(self) -> int:
        """How many pods of its group start together at least."""
        return 1 if self.request.group is None else self.request.group.min_count

    @property
    def key(self) -> tuple[object, float]:
        """Pods with equal keys fit in the same places at the same times."""
        return RequestKey.of(self.request) if self.shape is None else self.shape, self.time_limit_s

    @property
    def name(self) -> str:
        return self.request.pod.uid


@dataclass(slots=True)
class QueueState:
    """What a queue and all queues below it hold and wait for."""

    milli: int = 0
    mib: int = 0
    users: dict[str, DecayedUsage] = field(default_factory=dict[str, DecayedUsage])
    lines: dict[str, deque[QueuedPod]] = field(default_factory=dict[str, deque[QueuedPod]])
    """The waiting pods of each user, in the order in which they came."""


class WaitingLines:
    """All waiting pods, and what every queue and user holds."""

    def __init__(self, queues: GpuQueues, half_life_s: float = HALF_LIFE_S) -> None:
        self.queues = queues
        self.state = {queue.name: QueueState() for queue in queues}
        self.placed: Counter[GroupKey] = Counter()
        """How many pods of each group have a place."""
        self._half_life_s = half_life_s
        self._above = {queue.name: queues.line_of(queue.name) for queue in queues}

    # -- changes -----------------------------------------------------------------------------------------------

    def add(self, pod: QueuedPod) -> None:
        """A pod came; it is the last of its user."""
        self.state[pod.queue].lines.setdefault(pod.user, deque()).append(pod)

    def remove(self, pod: QueuedPod) -> None:
        """A pod waits no longer: it starts, or was deleted."""
        lines = self.state[pod.queue].lines
        lines[pod.user].remove(pod)
        if not lines[pod.user]:
            del lines[pod.user]

    def started(self, pod: QueuedPod, now: float) -> None:
        """A pod holds its share from now on."""
        self._hold(pod, 1, now)

    def ended(self, pod: QueuedPod, now: float) -> None:
        """A pod gave its share back."""
        self._hold(pod, -1, now)

    def count(self, pod: QueuedPod, sign: int) -> None:
        """Count what a pod holds in its queue and in those above it."""
        for queue in self._above[pod.queue]:
            self.state[queue.name].milli += sign * pod.milli
            self.state[queue.name].mib += sign * pod.mib
        if pod.group is not None:
            self.placed[pod.group] += sign

    def _hold(self, pod: QueuedPod, sign: int, now: float) -> None:
        self.count(pod, sign)
        users = self.state[pod.queue].users
        users[pod.user] = users.get(pod.user, DecayedUsage(at=now)).hold(sign * pod.milli, now, self._half_life_s)

    # -- questions ---------------------------------------------------------------------------------------------

    def line(self, queue: GpuQueue, now: float) -> list[QueuedPod]:
        """The waiting pods of a queue in the order of their turns.

        In a fair queue a pod counts what its user had of late, and what the user's pods before it would add.
        """
        state = self.state[queue.name]
        if queue.order is QueueOrder.FIFO:
            pods = [pod for line in state.lines.values() for pod in line]
            return sorted(pods, key=lambda pod: (pod.arrived, pod.name))
        turns: list[tuple[float, float, str, QueuedPod]] = []
        for user, line in state.lines.items():
            usage = state.users.get(user, _NOTHING).until(now, self._half_life_s)
            before = usage.average + usage.held
            for pod in line:
                turns.append((before, pod.arrived, pod.name, pod))
                before += pod.milli
        return [pod for _, _, _, pod in sorted(turns, key=lambda turn: turn[:3])]

    def group_members(self, pod: QueuedPod) -> list[QueuedPod]:
        """The waiting pods of a pod's group, in the order in which they came."""
        waiting = (each for line in self.state[pod.queue].lines.values() for each in line)
        return sorted((each for each in waiting if each.group == pod.group), key=lambda each: each.arrived)

    def over_ceiling(self, pod: QueuedPod) -> GpuQueue | None:
        """The queue that would exceed its ceiling with this pod; None if none would."""
        return next((each for each in self._above[pod.queue] if not self._within(each, pod, each.ceiling)), None)

    def within_guarantee(self, pod: QueuedPod) -> bool:
        """Whether the pod's queue, and each above it, still has the guarantee for it."""
        return all(self._within(queue, pod, queue.guarantee) for queue in self._above[pod.queue])

    def _within(self, queue: GpuQueue, pod: QueuedPod, quota: Quota) -> bool:
        state = self.state[queue.name]
        milli = quota.milli is None or state.milli + pod.milli <= quota.milli
        return milli and (quota.mib is None or state.mib + pod.mib <= quota.mib)

    def kept_for_owners(self) -> int:
        """Milli-GPU that queues which do not lend leave idle of their guarantees."""
        idle = ((queue, self.state[queue.name].milli) for queue in self.queues.leaves if not queue.lends)
        return sum(max(0, (queue.guarantee.milli or 0) - used) for queue, used in idle)

    def next_queue(self, heads: dict[str, QueuedPod]) -> GpuQueue | None:
        """The queue whose turn it is among those with a pod in `heads`: guarantees first, then by weight."""
        name = ""
        while children := [each for each in self.queues.children(name) if self._has(each, heads)]:
            name = min(children, key=lambda each: self._turn(each, heads)).name
        return self.queues[name] if name else None

    def _has(self, queue: GpuQueue, heads: dict[str, QueuedPod]) -> bool:
        below = self.queues.children(queue.name)
        return any(self._has(each, heads) for each in below) if below else queue.name in heads

    def _turn(self, queue: GpuQueue, heads: dict[str, QueuedPod]) -> tuple[bool, float, str]:
        guarantee = queue.guarantee.milli or 0
        used, more = self.state[queue.name].milli, self._least(queue, heads)
        if used + more <= guarantee:
            return False, used / guarantee, queue.name
        return True, (used + more - guarantee) / queue.weight, queue.name

    def _least(self, queue: GpuQueue, heads: dict[str, QueuedPod]) -> int:
        """The smallest of the pods that are next in this queue and in those below it."""
        below = self.queues.children(queue.name)
        if not below:
            return heads[queue.name].milli
        return min(self._least(each, heads) for each in below if self._has(each, heads))
