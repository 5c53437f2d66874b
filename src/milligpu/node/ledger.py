"""What Allocate promised: each CDI device name with the slots it stands for, on disk before the kubelet hears it.

The kubelet repeats an old answer when a container restarts, even after a reboot, so the ledger outlives both. A
name is never used twice: a container can only ever find the file that was written for it.
"""

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from milligpu.model.errors import BadFormat
from milligpu.wire.json import VERSION, Document, decode, encode

CDI_KIND = "milligpu.dev/share"
_SUFFIX = ".json"
_NAME_BYTES = 12


class _Entry(Document, frozen=True):
    number: int
    resource: str
    slots: list[str]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One answer to Allocate: one container's slots of one resource."""

    name: str
    number: int
    """Counts up: of two with the same slots the later one is of the container that has them now."""
    resource: str
    slots: frozenset[str]

    @property
    def device(self) -> str:
        """The name as CDI spells it."""
        return f"{CDI_KIND}={self.name}"


class Ledger:
    """A folder with one file per allocation."""

    def __init__(self, folder: Path) -> None:
        """Read what is there; a file that does not read was never answered with, and goes."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        found = [_read(file) for file in sorted(folder.glob(f"*{_SUFFIX}"))]
        self._entries = {entry.name: entry for entry in found if entry}
        self._last = max((entry.number for entry in self._entries.values()), default=0)
        for left in folder.glob("*.tmp"):
            left.unlink(missing_ok=True)

    @property
    def entries(self) -> tuple[Allocation, ...]:
        """All that is promised, oldest first."""
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.number))

    def promise(self, resource: str, slots: Iterable[str]) -> Allocation:
        """A new name for these slots; it is safe on disk when this returns."""
        self._last += 1
        entry = Allocation(secrets.token_hex(_NAME_BYTES), self._last, resource, frozenset(slots))
        text = encode(_Entry(VERSION, entry.number, resource, sorted(entry.slots)))
        write_safely(self._folder / (entry.name + _SUFFIX), text, lasting=True)
        self._entries[entry.name] = entry
        return entry

    def forget(self, name: str) -> None:
        """Its container will not come back."""
        (self._folder / (name + _SUFFIX)).unlink(missing_ok=True)
        self._entries.pop(name, None)


def write_safely(path: Path, text: str, *, lasting: bool) -> None:
    """Put a file in place whole, so that neither a crash nor a reader ever meets half of it.

    What must outlive a reboot is `lasting`: it is on the disk when this returns.
    """
    fresh = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
        if lasting:
            out.flush()
            os.fsync(out.fileno())
    fresh.rename(path)


def _read(file: Path) -> Allocation | None:
    try:
        raw = decode("allocation", file.read_bytes(), _Entry)
    except BadFormat:
        file.unlink(missing_ok=True)
        return None
    return Allocation(file.stem, raw.number, raw.resource, frozenset(raw.slots))
