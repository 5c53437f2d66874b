"""A virtual clock: things happen at times, in order; nanoseconds."""

import heapq
from collections.abc import Callable

US = 1_000
MS = 1_000_000
S = 1_000_000_000


class Clock:
    """What will happen when."""

    def __init__(self) -> None:
        self.now = 0
        self._count = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, when: int, what: Callable[[], None]) -> None:
        """Do it then; what is due already happens next, after what was due before."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, what))

    def after(self, delay: int, what: Callable[[], None]) -> None:
        """Do it later."""
        self.at(self.now + delay, what)

    def run(self, until: int) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until
