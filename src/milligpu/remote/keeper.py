"""The process that keeps a session open while a command runs, and closes it when the command ends."""

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from milligpu.remote.connection import ServerConnection
from milligpu.remote.protocol import BEAT_SECONDS, SILENCE_SECONDS, ClientBeat

_STDERR = 2


def keep_open(connection: ServerConnection) -> None:
    """Leave a process behind that keeps the session open until this process, or what replaces it, ends.

    It is no child of this process: a program that waits for its children must not meet one that it did not start.
    """
    owner = os.pidfd_open(os.getpid())
    leave_behind({connection.fileno(), owner}, lambda: _keep(connection, owner))
    os.close(owner)


def leave_behind(kept: set[int], work: Callable[[], None]) -> None:
    """Do this in a process that is no child of this one, and has none of its files but those that are kept."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        _close_all_but(kept)
        work()
    finally:
        os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    """Close what the command's pipes and files would otherwise stay open by."""
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        if number > _STDERR and number not in kept:
            with suppress(OSError):
                os.close(number)


def _keep(connection: ServerConnection, owner: int) -> None:
    """Beat until the command ends or the server is gone."""
    heard = beaten = time.monotonic()
    while time.monotonic() - heard < SILENCE_SECONDS:
        ready, _, _ = select.select([owner, connection.fileno()], [], [], BEAT_SECONDS)
        if owner in ready:
            break
        if ready:
            with suppress(TimeoutError):
                connection.receive(0)
            heard = time.monotonic()
        if time.monotonic() - beaten >= BEAT_SECONDS:
            connection.send(ClientBeat())
            beaten = time.monotonic()
    connection.close()
