"""Directories and files that appear whole or not at all, so that a process may be killed at any moment.

A directory is filled under a hidden name and renamed when it is complete. To end it, it is renamed back first:
from then on no process can open anything in it by its name.
"""

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

_HIDDEN = "."


class Folders:
    """All directories below one root, by name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return where a complete directory is."""
        return self._root / name

    def hidden(self, name: str) -> Path:
        """Return where a directory is while it is filled or deleted."""
        return self._root / f"{_HIDDEN}{name}"

    @contextmanager
    def make(self, name: str) -> Generator[Path]:
        """Fill a new directory; it exists from the moment in which the block ends well."""
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        making = self.hidden(name)
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o755)
        try:
            yield making
            making.rename(self.path(name))
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise

    def hide(self, name: str) -> None:
        """Take a directory away from its name; processes that have it open keep it."""
        if self.path(name).exists():
            self.path(name).rename(self.hidden(name))

    def delete(self, name: str) -> None:
        """Delete a directory, hidden first if it is not yet."""
        self.hide(name)
        shutil.rmtree(self.hidden(name), ignore_errors=True)

    def entries(self) -> Iterator[tuple[str, Path]]:
        """List every directory by its name, hidden ones too: their path tells."""
        for path in sorted(self._root.iterdir()) if self._root.exists() else ():
            yield path.name.removeprefix(_HIDDEN), path


def write_atomically(path: Path, text: str, *, lasting: bool) -> None:
    """Replace a file as a whole, so that neither a crash nor a reader ever sees half of it.

    A `lasting` file is on the disk when this returns, so it survives a power failure.
    """
    new = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        if lasting:
            file.flush()
            os.fsync(file.fileno())
    new.rename(path)
    if lasting:
        _sync_directory(path.parent)  # else a power failure could undo the rename


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
