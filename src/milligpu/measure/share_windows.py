"""From what a card counted to shares in windows of time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WINDOW_NS = 10_000_000_000
Clock = Callable[[], int]
"""Nanoseconds of CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How long the card was busy with each process up to a moment."""

    time: int
    busy: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """From this moment on these shares are wanted, in percent."""

    time: int
    shares: Sequence[float]


def share(first: Sample, last: Sample, pids: Sequence[int]) -> float:
    """What these processes had of the card between two moments, in percent."""
    busy = sum(last.busy.get(pid, 0) - first.busy.get(pid, 0) for pid in pids)
    return 100 * busy / (last.time - first.time)


def wanted_share(steps: Sequence[Step], tenant: int, start: int, end: int) -> float:
    """What a tenant should have in a window across which its share may have changed."""
    total = 0.0
    for at, step in enumerate(steps):
        until = steps[at + 1].time if at + 1 < len(steps) else end
        overlap = min(end, until) - max(start, step.time)
        total += step.shares[tenant] * max(0, overlap)
    return total / (end - start)


def windows(samples: Sequence[Sample], length: int = WINDOW_NS) -> list[tuple[Sample, Sample]]:
    """All pairs of moments that are a window apart; the whole time when it is shorter."""
    pairs: list[tuple[Sample, Sample]] = []
    end = 0
    for first in samples:
        while end < len(samples) and samples[end].time - first.time < length:
            end += 1
        if end == len(samples):
            break
        pairs.append((first, samples[end]))
    return pairs or [(samples[0], samples[-1])]


def worst_error(samples: Sequence[Sample], pids: Sequence[Sequence[int]], steps: Sequence[Step]) -> float:
    """The largest difference to what was wanted, of any tenant in any window, in percentage points."""
    return max(
        abs(share(first, last, mine) - wanted_share(steps, tenant, first.time, last.time))
        for first, last in windows(samples)
        for tenant, mine in enumerate(pids)
    )
