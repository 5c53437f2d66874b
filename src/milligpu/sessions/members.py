"""Which processes belong to a session: those that were started with the session's variable in their environment."""

from collections.abc import Iterator
from pathlib import Path

from milligpu.tenancy.processes import ProcessId, process

SESSION_VARIABLE = "MILLIGPU_SESSION"

_PROC = Path("/proc")


def session_of(pid: int) -> str | None:
    """Return the session in which a process was started; None when it was started in none."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = f"{SESSION_VARIABLE}=".encode()
    found = next((part for part in environment.split(b"\0") if part.startswith(prefix)), None)
    return None if found is None else found[len(prefix) :].decode(errors="replace")


def members(session: str) -> Iterator[ProcessId]:
    """List the running processes of a session."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and session_of(int(entry.name)) == session:
            found = process(int(entry.name))
            if found is not None:
                yield found
