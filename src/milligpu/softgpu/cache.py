"""A cache of compiled modules on disk; the least recently used ones are removed.

Several daemons may use one directory at the same time: a file that is removed while a daemon reads it stays
readable until the daemon closes it.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

# About ten thousand modules; tinygrad's test suite makes a few hundred MiB.
_MOST_BYTES = 1 << 30
# Scanning the directory takes as long as compiling one module, so only every 64th `put` does it.
_LOOK_EVERY = 64
# Prune to this fraction of the limit, so that the next scan does not have to prune again.
_KEEP = 0.8


class CompileCache:
    """Object files, keyed by everything they were compiled from."""

    def __init__(self, folder: Path, fingerprint: str, most_bytes: int = _MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._puts = 0
        self._seed = hashlib.sha256(fingerprint.encode())
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, ptx: bytes) -> str:
        """The key of a module: a hash of its text and of everything else that its code depends on."""
        digest = self._seed.copy()
        digest.update(ptx)
        return digest.hexdigest()

    def open(self, key: str) -> int | None:
        """Open the object file; None if the cache does not have it."""
        try:
            descriptor = os.open(self._folder / f"{key}.o", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        # The file's time is the time of its last use, for `prune`. The cache may belong to another user.
        with contextlib.suppress(PermissionError):
            os.utime(descriptor)
        return descriptor

    def put(self, key: str, code: bytes) -> int:
        """Store the code atomically and return a descriptor of its file."""
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(code)
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            os.rename(name, self._folder / f"{key}.o")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._puts += 1
        if self._puts % _LOOK_EVERY == 1:
            self.prune()
        return descriptor

    def prune(self) -> None:
        """Remove the least recently used files while the cache exceeds its limit."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= self._most_bytes:
            return
        for _, size, path in sorted(found):
            if total <= self._most_bytes * _KEEP:
                return
            path.unlink(missing_ok=True)
            total -= size
