"""GPU locks: a service locks each GPU that it shares, in a directory that all users of the machine can write.

Two services on one GPU would grant it twice, so the second one is refused. The kernel drops a lock when its process
ends.
"""

import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from milligpu.model.errors import Unavailable

MACHINE = Path("/dev/shm/milligpu")
"""The directory of the locks; on every Linux all users can write here."""
# All users can create files here, but cannot delete those of others.
_SHARED = 0o1777


class GpuLocks:
    """The GPUs that this process has locked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, int] = {}

    def hold(self, uuids: Collection[str]) -> None:
        """Lock exactly these GPUs; if one is taken, lock none of the new ones and raise `Unavailable`."""
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
            f"{uuid} is already managed by another agent{holder}",
            hint="for several users, run one agent as root: milligpu agent --local",
        ) from None
    return lock


def _open(folder: Path, uuid: str) -> int:
    """Open the lock's file; the kernel refuses O_CREAT for another user's file here, so first without it."""
    path = folder / uuid
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_SHARED)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o444)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", hint="GPU locks are kept in this directory") from None


def _holder(inode: int) -> str:
    """Name the process that has the lock, if the kernel knows it."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return f" (process {fields[4]})"
    return ""
