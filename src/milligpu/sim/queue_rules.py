"""Rules to compare with: what clusters do today with pods that wait."""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from milligpu.model.gpu_queue import GpuQueues
from milligpu.placement.decide import Placer
from milligpu.placement.fit import RequestKey
from milligpu.queues.admit import Admission, Started
from milligpu.queues.opening import Opening
from milligpu.queues.order import QueuedPod, WaitingLines


class QueueRule(Protocol):
    """Decides which waiting pods start."""

    @property
    def openings(self) -> dict[str, Opening]:
        """The times that were promised."""
        ...

    def add(self, pod: QueuedPod) -> None:
        """A pod came."""
        ...

    def end(self, pod: QueuedPod, now: float) -> None:
        """A pod ended."""
        ...

    def start(self, now: float) -> Iterator[Started]:
        """Start all pods that may start."""
        ...


class _Baseline:
    """What the rules below have in common: they place pods, and promise nothing."""

    def __init__(self, placer: Placer, queues: GpuQueues) -> None:
        self.openings: dict[str, Opening] = {}
        self._placer = placer
        self._lines = WaitingLines(queues)
        self._refused: set[RequestKey] = set()

    def end(self, pod: QueuedPod, now: float) -> None:
        self._placer.release(pod.name)
        self._lines.ended(pod, now)
        self._refused.clear()

    def _place(self, pod: QueuedPod, now: float) -> Started | None:
        key = RequestKey.of(pod.request)
        grant = None if key in self._refused else self._placer.place(pod.request)
        if grant is None:
            self._refused.add(key)
            return None
        self._placer.commit(pod.request, grant)
        self._lines.started(pod, now)
        return Started(pod, grant, early=False)


class OneLine(_Baseline):
    """All pods in one line; the first that does not fit stops all others."""

    def __init__(self, placer: Placer, queues: GpuQueues) -> None:
        super().__init__(placer, queues)
        self._line: deque[QueuedPod] = deque()

    def add(self, pod: QueuedPod) -> None:
        self._placer.observe(pod.request)
        self._line.append(pod)

    def start(self, now: float) -> Iterator[Started]:
        while self._line and (started := self._place(self._line[0], now)) is not None:
            self._line.popleft()
            yield started


class LinePerQueue(_Baseline):
    """A line for each queue; the first that does not fit, or is above the ceiling, stops its own queue."""

    def __init__(self, placer: Placer, queues: GpuQueues) -> None:
        super().__init__(placer, queues)
        self._waiting: dict[str, deque[QueuedPod]] = {queue.name: deque() for queue in queues.leaves}

    def add(self, pod: QueuedPod) -> None:
        self._placer.observe(pod.request)
        self._waiting[pod.queue].append(pod)

    def start(self, now: float) -> Iterator[Started]:
        for line in sorted((each for each in self._waiting.values() if each), key=lambda each: each[0].arrived):
            while line and self._lines.over_ceiling(line[0]) is None:
                started = self._place(line[0], now)
                if started is None:
                    break
                line.popleft()
                yield started


class KueueRule(_Baseline):
    """Kueue's published rule with its defaults: quota by sums, one cohort, `BestEffortFIFO`, no preemption.

    A cycle takes the first pod of each queue, those within their own quota before those that borrow. A pod for
    which no quota is free is passed over until something ends. What is admitted holds its quota and gets a GPU as
    soon as kube-scheduler finds one.
    """

    def __init__(self, placer: Placer, queues: GpuQueues, capacity: int) -> None:
        super().__init__(placer, queues)
        self._queues, self._capacity = queues, capacity
        self._waiting: dict[str, list[QueuedPod]] = {queue.name: [] for queue in queues.leaves}
        self._passed: dict[str, list[QueuedPod]] = {queue.name: [] for queue in queues.leaves}
        self._admitted: list[QueuedPod] = []
        self._used = dict.fromkeys(self._waiting, 0)

    def add(self, pod: QueuedPod) -> None:
        self._placer.observe(pod.request)
        self._waiting[pod.queue].append(pod)

    def end(self, pod: QueuedPod, now: float) -> None:
        super().end(pod, now)
        self._used[pod.queue] -= pod.milli
        for name, passed in self._passed.items():
            self._waiting[name] = sorted([*passed, *self._waiting[name]], key=lambda each: each.arrived)
            passed.clear()

    def start(self, now: float) -> Iterator[Started]:
        while heads := [line[0] for line in self._waiting.values() if line]:
            for pod in sorted(heads, key=lambda each: (self._borrows(each), each.arrived)):
                self._waiting[pod.queue].pop(0)
                if self._has_quota(pod):
                    self._used[pod.queue] += pod.milli
                    self._admitted.append(pod)
                else:
                    self._passed[pod.queue].append(pod)
        left: list[QueuedPod] = []
        for pod in self._admitted:
            started = self._place(pod, now)
            if started is None:
                left.append(pod)
            else:
                yield started
        self._admitted = left

    def _borrows(self, pod: QueuedPod) -> bool:
        return self._used[pod.queue] + pod.milli > (self._queues[pod.queue].guarantee.milli or 0)

    def _has_quota(self, pod: QueuedPod) -> bool:
        ceiling = self._queues[pod.queue].ceiling.milli
        if ceiling is not None and self._used[pod.queue] + pod.milli > ceiling:
            return False
        return not self._borrows(pod) or sum(self._used.values()) + pod.milli <= self._capacity


RULES = ("milligpu", "fifo", "fifo-per-queue", "kueue")
"""Ours, then those to compare with."""


def make_rule(name: str, placer: Placer, queues: GpuQueues, capacity: int) -> QueueRule:
    """The rule of this name over an empty cluster."""
    match name:
        case "milligpu":
            return Admission(placer, WaitingLines(queues), capacity)
        case "fifo":
            return OneLine(placer, queues)
        case "fifo-per-queue":
            return LinePerQueue(placer, queues)
        case _:
            return KueueRule(placer, queues, capacity)
