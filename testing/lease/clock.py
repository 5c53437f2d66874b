"""A virtual clock in nanoseconds, which runs events in order of their time."""

import heapq
from collections.abc import Callable

US = 1_000
MS = 1_000_000
S = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self._count = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, when: int, what: Callable[[], None]) -> None:
        """Schedule an event; if its time has passed, it runs next, after earlier events."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, what))

    def after(self, delay: int, what: Callable[[], None]) -> None:
        self.at(self.now + delay, what)

    def run(self, until: int) -> None:
        """Run all events up to this time."""
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = until
