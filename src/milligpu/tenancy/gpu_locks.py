"""One agent per GPU: whoever shares a card out holds a lock that all users of the machine see.

Two agents on one card would grant it twice, so the second one is refused. The kernel drops a lock with its holder.
"""

import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from milligpu.model.errors import Unavailable

MACHINE = Path("/dev/shm/milligpu")
"""Of the cards that all users of a machine see; every Linux lets everybody write there."""
# Everybody makes files here, nobody removes another's.
_SHARED = 0o1777


class Claims:
    """The cards that this agent shares out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, int] = {}

    def hold(self, uuids: Collection[str]) -> None:
        """Have exactly these from now on, or none of the new ones and Unavailable."""
        for uuid in self._locks.keys() - set(uuids):
            os.close(self._locks.pop(uuid))
        taken: dict[str, int] = {}
        try:
            for uuid in uuids:
                if uuid not in self._locks:
                    taken[uuid] = _lock(self._folder, uuid)
        except BaseException:
            for lock in taken.values():
                os.close(lock)
            raise
        self._locks |= taken


def _lock(folder: Path, uuid: str) -> int:
    lock = _open(folder, uuid)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(os.fstat(lock).st_ino)
        os.close(lock)
        raise Unavailable(
            f"{uuid} is shared out by another agent on this machine{holder}",
            hint="one agent for everybody: milligpu agent --local, as root",
        ) from None
    return lock


def _open(folder: Path, uuid: str) -> int:
    """The lock's file; the kernel refuses O_CREAT for one of another user's in such a folder, so first without."""
    path = folder / uuid
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_SHARED)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o444)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", hint="agents lock the cards they share out there") from None


def _holder(inode: int) -> str:
    """Who has it, as far as the kernel says."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return f" (process {fields[4]})"
    return ""
