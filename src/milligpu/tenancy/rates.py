"""Measured use: how much of a GPU's time a session had within the last seconds."""

from collections import deque
from collections.abc import Sequence, Set

WINDOW_SECONDS = 10.0
"""Long enough to even out turns, short enough to see a change."""


class Meter:
    """Keeps counters that only grow, and answers with their rate over the window."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def add(self, session: str, now: float, busy_ns: Sequence[int]) -> None:
        """A session's GPU time so far, one number per GPU."""
        samples = self._samples.setdefault(session, deque())
        if samples and any(new < old for new, old in zip(busy_ns, samples[-1][1], strict=True)):
            samples.clear()  # another arbiter counts from zero
        samples.append((now, tuple(busy_ns)))
        while len(samples) > 2 and samples[1][0] <= now - self._window:
            samples.popleft()

    def rates(self, session: str) -> tuple[float, ...] | None:
        """The part of each GPU's time, 0 to 1; None before there are two samples."""
        samples = self._samples.get(session, ())
        if len(samples) < 2:
            return None
        (start, first), (end, last) = samples[0], samples[-1]
        return tuple((b - a) / 1e9 / (end - start) for a, b in zip(first, last, strict=True))

    @property
    def known(self) -> Set[str]:
        """Whose counters were read."""
        return self._samples.keys()

    def forget(self, session: str) -> None:
        """It is over."""
        self._samples.pop(session, None)
