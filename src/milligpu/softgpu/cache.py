"""Compiled modules on disk, those that nobody uses any more thrown away.

Any number of daemons may use one folder at the same time: a file that goes while somebody reads it stays until they
have read it.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

# Some ten thousand modules; a test suite of tinygrad's makes a few hundred MiB.
_MOST_BYTES = 1 << 30
# Looking through the folder takes as long as compiling one module; so it is done once in so many.
_LOOK_EVERY = 64
# Down to this part of the limit, so that the next look is not the next purge.
_KEEP = 0.8


class CompileCache:
    """Object files by what they were made from."""

    def __init__(self, folder: Path, fingerprint: str, most_bytes: int = _MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._puts = 0
        self._seed = hashlib.sha256(fingerprint.encode())
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, ptx: bytes) -> str:
        """The name of a module: its text, and everything else that its code depends on."""
        digest = self._seed.copy()
        digest.update(ptx)
        return digest.hexdigest()

    def open(self, key: str) -> int | None:
        """A descriptor of the object file, if there is one."""
        try:
            descriptor = os.open(self._folder / f"{key}.o", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        # Its time is that of its last use: what is used stays. The cache may also be somebody else's to write.
        with contextlib.suppress(PermissionError):
            os.utime(descriptor)
        return descriptor

    def put(self, key: str, code: bytes) -> int:
        """Store it and return its descriptor. It appears under its name complete or not at all."""
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
        """Remove what was not used for longest, if all of it together is too much."""
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
