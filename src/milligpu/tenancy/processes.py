"""Processes by pid and start time, because the kernel reuses pids."""

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
# Since Linux 6.5: a pidfd of the process that connected. Python 3.11 has no name for it.
_SO_PEERPIDFD = 77
_START_TIME_FIELD = 19


@cache
def boot_id() -> str:
    """Identify this boot, from which start times are counted."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks after boot; None when it has ended or is a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name is in parentheses and may itself contain parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[_START_TIME_FIELD])


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, never confused with a later one of the same pid."""

    pid: int
    started: int
    uid: int
    boot: str

    def open(self) -> int | None:
        """Open a pidfd, which becomes readable when the process ends; None when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Checked after opening: the kernel does not reuse the pid while the pidfd is open.
        if self.boot != boot_id() or start_time(self.pid) != self.started:
            os.close(handle)
            return None
        return handle

    def kill(self, number: signal.Signals) -> None:
        """Send a signal if the process still runs."""
        handle = self.open()
        if handle is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
            os.close(handle)


def process(pid: int) -> ProcessId | None:
    """Return the process that has this pid now."""
    started = start_time(pid)
    try:
        uid = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None
    return None if started is None else ProcessId(pid, started, uid, boot_id())


def peer(connection: socket.socket) -> tuple[ProcessId, int] | None:
    """Return the process at the other end and its pidfd; None when it has already ended."""
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
    return ProcessId(pid, started, uid, boot_id()), handle


def command_name(pid: int) -> str:
    """Return the name of a process's program, without arguments, which may be secret; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def memory_maps(pid: int) -> str:
    """Return the memory maps of a process; empty when it has ended."""
    try:
        return (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return ""
