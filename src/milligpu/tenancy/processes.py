"""Who is alive: processes by number and start time, because a number alone is soon somebody else's."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SESSION_VARIABLE = "MILLIGPU_SESSION"
"""In the environment of a session's command: by it the agent tells a session's processes from others."""

_PROC = Path("/proc")
# Linux 6.5 has it: a handle of the very process that connected. Python 3.11 has no name for it.
_SO_PEERPIDFD = 77
_START_TIME_FIELD = 19


@cache
def boot_id() -> str:
    """Which boot this is: start times are counted from it."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None when it is gone or only a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name stands in parentheses and may contain anything, further parentheses too.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[_START_TIME_FIELD])


@dataclass(frozen=True, slots=True)
class Process:
    """One process, never confused with a later one of the same number."""

    pid: int
    started: int
    uid: int
    boot: str

    def open(self) -> int | None:
        """A handle that becomes readable when it ends; None when it has."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Only now: the number cannot change hands while we hold the handle.
        if self.boot != boot_id() or start_time(self.pid) != self.started:
            os.close(handle)
            return None
        return handle

    def kill(self, number: signal.Signals) -> None:
        """Send a signal, if it still lives."""
        handle = self.open()
        if handle is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
            os.close(handle)


def process(pid: int) -> Process | None:
    """The process that has this number now."""
    started = start_time(pid)
    try:
        uid = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None
    return None if started is None else Process(pid, started, uid, boot_id())


def peer(connection: socket.socket) -> tuple[Process, int] | None:
    """The process at the other end as the kernel knows it, with a handle; None when it is gone already."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(credentials[at : at + 4], "little") for at in (0, 4))
    try:
        handle = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return None
    started = start_time(pid)
    if started is None:
        os.close(handle)
        return None
    return Process(pid, started, uid, boot_id()), handle


def session_of(pid: int) -> str | None:
    """The session that a process was started in, by the environment it was started with."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{SESSION_VARIABLE}=".encode()
    found = next((part for part in environment.split(b"\0") if part.startswith(prefix)), None)
    return None if found is None else found[len(prefix) :].decode(errors="replace")


def members(session: str) -> Iterator[Process]:
    """All living processes that were started in a session."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and session_of(int(entry.name)) == session:
            found = process(int(entry.name))
            if found is not None:
                yield found


def memory_maps(pid: int) -> str:
    """Which files a process has in its memory; nothing when it is gone."""
    try:
        return (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return ""
