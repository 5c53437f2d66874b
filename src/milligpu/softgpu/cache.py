"""Compiled modules on disk. Any number of daemons may use one folder at the same time."""

import hashlib
import os
import tempfile
from pathlib import Path


class CompileCache:
    """Object files by what they were made from."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
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
            return os.open(self._folder / f"{key}.o", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

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
        return descriptor
