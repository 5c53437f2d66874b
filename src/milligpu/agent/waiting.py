"""The queue: who waits for a share, in which order, and what each of them is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milligpu.agent.processes import Process
from milligpu.agent.protocol import Granted, Queued, Refused
from milligpu.agent.wish import Wish

Tell = Callable[[Granted | Queued | Refused], None]
"""How a waiting command hears of what becomes of it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One command that waits."""

    id: str
    """The name its session will have."""
    process: Process
    command: tuple[str, ...]
    wish: Wish
    tell: Tell
    patient: bool = True
    """Whether it stays when it gets nothing now."""
    told: Queued | None = None

    @property
    def rank(self) -> tuple[int, int, int]:
        """Higher priority first, then who started first: an order that outlives the agent and cannot be forged."""
        return -self.wish.priority, self.process.started, self.process.pid

    def queued(self, queued: Queued) -> None:
        """Tell it how it stands, unless it knows."""
        if queued != self.told:
            self.told = queued
            if self.patient:
                self.tell(queued)


class Queue:
    """Nobody overtakes: a small request behind a large one waits, or the large one might wait for ever."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def all(self) -> Sequence[Waiting]:
        """In order."""
        return tuple(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Join at the place that the rank gives."""
        self._waiting = sorted([*self._waiting, waiting], key=lambda each: each.rank)

    def remove(self, waiting: Waiting) -> None:
        """Leave, granted or not; leaving twice is no harm."""
        self._waiting = [each for each in self._waiting if each is not waiting]
