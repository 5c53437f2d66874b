"""From the busy times that a GPU counted to shares in windows of time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WINDOW_NS = 10_000_000_000
Clock = Callable[[], int]
"""Nanoseconds of CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class BusySample:
    """How long the GPU was busy with each process, in nanoseconds up to `time`."""

    time: int
    busy: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ShareStep:
    """The shares that tenants should have from `time` on, in percent."""

    time: int
    shares: Sequence[float]


def used_percent(first: BusySample, last: BusySample, pids: Sequence[int]) -> float:
    """The part of the GPU's time that these processes used between two samples."""
    busy = sum(last.busy.get(pid, 0) - first.busy.get(pid, 0) for pid in pids)
    return 100 * busy / (last.time - first.time)


def wanted_share(steps: Sequence[ShareStep], tenant: int, start: int, end: int) -> float:
    """The share that a tenant should have in a window in which its share may have changed."""
    total = 0.0
    for at, step in enumerate(steps):
        until = steps[at + 1].time if at + 1 < len(steps) else end
        overlap = min(end, until) - max(start, step.time)
        total += step.shares[tenant] * max(0, overlap)
    return total / (end - start)


def windows(samples: Sequence[BusySample], length: int = WINDOW_NS) -> list[tuple[BusySample, BusySample]]:
    """All pairs of samples that are `length` apart; first and last if the samples cover less."""
    pairs: list[tuple[BusySample, BusySample]] = []
    end = 0
    for first in samples:
        while end < len(samples) and samples[end].time - first.time < length:
            end += 1
        if end == len(samples):
            break
        pairs.append((first, samples[end]))
    return pairs or [(samples[0], samples[-1])]


def worst_error(samples: Sequence[BusySample], pids: Sequence[Sequence[int]], steps: Sequence[ShareStep]) -> float:
    """The largest difference to the wanted share, of any tenant in any window, in percentage points."""
    return max(
        abs(used_percent(first, last, mine) - wanted_share(steps, tenant, first.time, last.time))
        for first, last in windows(samples)
        for tenant, mine in enumerate(pids)
    )
