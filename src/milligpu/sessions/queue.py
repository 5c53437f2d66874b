"""The session queue: which commands wait for a share, and in which order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milligpu.sessions.protocol import RequestRefused, ShareGranted, ShareQueued
from milligpu.sessions.request import SessionRequest
from milligpu.tenancy.processes import ProcessId

Notify = Callable[[ShareGranted | ShareQueued | RequestRefused], None]
"""Sends a message to the command that waits."""


@dataclass(slots=True, eq=False)
class QueuedCommand:
    """One command that waits."""

    id: str
    """The ID that its session will have."""
    process: ProcessId
    command: tuple[str, ...]
    request: SessionRequest
    notify: Notify
    patient: bool = True
    """Whether it stays in the queue when it gets no share now."""
    last: ShareQueued | None = None
    """The message that it got last."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort by priority, then by the process's start: an order that survives restarts and cannot be forged."""
        return -self.request.priority, self.process.started, self.process.pid

    def update(self, message: ShareQueued) -> None:
        """Notify the command if anything changed."""
        if message != self.last:
            self.last = message
            if self.patient:
                self.notify(message)


class SessionQueue:
    """No command overtakes another: if small requests could, a large one might wait for ever."""

    def __init__(self) -> None:
        self._waiting: list[QueuedCommand] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def all(self) -> Sequence[QueuedCommand]:
        """The commands in order."""
        return tuple(self._waiting)

    def add(self, command: QueuedCommand) -> None:
        self._waiting = sorted([*self._waiting, command], key=lambda each: each.rank)

    def remove(self, command: QueuedCommand) -> None:
        """Remove a command; one that is not there is ignored."""
        self._waiting = [each for each in self._waiting if each is not command]
