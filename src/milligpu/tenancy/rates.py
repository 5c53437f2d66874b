"""Utilization: the fraction of a GPU's time that a tenant had within the last seconds. Pure."""

from collections import deque
from collections.abc import Sequence

WINDOW_SECONDS = 10.0
"""Long enough to average over turns, short enough to show a change."""


class GpuTimeRates:
    """Rates of growing counters over a window of time."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def add(self, tenant: str, now: float, busy_ns: Sequence[int]) -> None:
        """Add a tenant's GPU time so far, one number for each of its GPUs."""
        samples = self._samples.setdefault(tenant, deque())
        if samples and any(new < old for new, old in zip(busy_ns, samples[-1][1], strict=True)):
            samples.clear()  # a new arbiter counts from zero
        samples.append((now, tuple(busy_ns)))
        while len(samples) > 2 and samples[1][0] <= now - self._window:
            samples.popleft()

    def rates(self, tenant: str) -> tuple[float, ...] | None:
        """Return the utilization of each GPU, 0 to 1; None before there are two samples."""
        samples = self._samples.get(tenant, ())
        if len(samples) < 2:
            return None
        (start, first), (end, last) = samples[0], samples[-1]
        return tuple((b - a) / 1e9 / (end - start) for a, b in zip(first, last, strict=True))

    def forget(self, tenant: str) -> None:
        self._samples.pop(tenant, None)
