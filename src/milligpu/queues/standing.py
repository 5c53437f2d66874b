"""Where a pod stands in its queue, and why it waits, in one line: for conditions, events and commands."""

from collections.abc import Iterator
from dataclasses import dataclass

from milligpu.cluster.pod_entry import PodEntry
from milligpu.model.gpu_queue import NO_QUEUE, GpuQueue
from milligpu.model.reasons import QueueReason
from milligpu.model.timestamps import show_time_of_day
from milligpu.model.units import show_mib, show_milli
from milligpu.queues.admit import Admission
from milligpu.queues.cluster_lines import latest_start
from milligpu.queues.group_turn import turn_of
from milligpu.queues.opening import Opening
from milligpu.queues.order import QueuedPod, WaitingLines


@dataclass(frozen=True, slots=True)
class Standing:
    """One waiting pod in its queue."""

    pod: QueuedPod
    position: int
    """From 1."""
    waiting: int
    """How many pods wait in the queue."""
    reason: QueueReason
    opening: Opening | None
    """The room that is kept for it."""
    detail: str = ""

    @property
    def message(self) -> str:
        """What a person reads: position, what the pod waits for, and until when."""
        where = "without a queue" if self.pod.queue == NO_QUEUE else f"in {self.pod.queue}"
        return f"{_ordinal(self.position)} of {self.waiting} {where}; {self._why()}; {self._when()}"

    def _why(self) -> str:
        asked = f"{show_milli(self.pod.milli)} GPU with {show_mib(self.pod.mib)}"
        match self.reason:
            case QueueReason.GROUP_INCOMPLETE:
                return f"waits for the other pods of its group: {self.detail}"
            case QueueReason.CEILING:
                return f"waits until pods of {self.detail} end, which has all that its ceiling allows"
            case QueueReason.KEPT_FOR_OWNERS:
                return f"waits for {asked}: what is free belongs to queues that do not lend"
            case QueueReason.NO_ROOM if self.opening is not None:
                return f"waits for {asked}; room on {self.opening.grant.node} is kept for it"
            case QueueReason.NO_ROOM:
                return f"waits for {asked}, which no node has"
            case _:
                return f"waits for {asked} after those before it"

    def _when(self) -> str:
        return describe_latest_start(latest_start(self.opening))


def describe_latest_start(latest: float | None) -> str:
    """Say by when a pod starts; None where nobody can say."""
    if latest is None:
        return "start unknown"
    return f"starts by {show_time_of_day(latest)}, by the time limits of running pods"


def _ordinal(number: int) -> str:
    last = number % 10 if number % 100 not in {11, 12, 13} else 0
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def standings(lines: WaitingLines, admission: Admission, queue: GpuQueue, now: float) -> Iterator[Standing]:
    """Yield where every waiting pod of a queue stands, in the order of their turns."""
    line = lines.line(queue, now)
    for position, pod in enumerate(line, 1):
        reason = admission.reasons.get(pod.name, QueueReason.WAITS_FOR_TURN)
        opening = admission.openings.get(pod.name)
        yield Standing(pod, position, len(line), reason, opening, _detail(lines, pod, reason))


def _detail(lines: WaitingLines, pod: QueuedPod, reason: QueueReason) -> str:
    """The queue whose ceiling is reached, or how many pods of a group there are."""
    turn = turn_of(lines, pod)
    if reason is QueueReason.GROUP_INCOMPLETE:
        missing = turn.needed - len(turn.pods)
        return f"{pod.group_min_count - missing} of {pod.group_min_count} exist"
    over = lines.over_ceiling(turn.together) if reason is QueueReason.CEILING else None
    return "" if over is None else over.name


def describe_stray(entry: PodEntry, problem: str) -> str:
    """Say why a pod waits whose queue does not exist, or cannot be used."""
    if entry.spec.request is None:
        return f"in {entry.spec.queue}, with a request that is invalid: {entry.spec.mistake}"
    if problem:
        return f"queue {entry.spec.queue} cannot be used: {problem}"
    return f"queue {entry.spec.queue} does not exist; the pod waits until it does"
