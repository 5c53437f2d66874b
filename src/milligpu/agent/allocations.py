"""The allocation store: each answer to the kubelet's Allocate, on disk before the kubelet gets it.

The kubelet repeats an old answer when a container restarts, even after a reboot, so the store outlives both. A CDI
name is never used twice: a container can only find the file that was written for it.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path

import structlog

from milligpu.agent.attachment import Allocation
from milligpu.model.errors import BadFormat, NewerDocument
from milligpu.tenancy.folders import write_atomically
from milligpu.wire.documents import Document, DocumentFormat, encode

ALLOCATION = DocumentFormat("allocation")
_SUFFIX = ".json"
_NAME_BYTES = 12

log = structlog.get_logger()


class _Entry(Document, frozen=True):
    number: int
    resource: str
    slots: list[str]


class AllocationStore:
    """A directory with one file per allocation."""

    def __init__(self, folder: Path) -> None:
        """Read all files. A broken file is deleted, because its answer was never sent; a newer one is kept."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        found = [_read(file) for file in sorted(folder.glob(f"*{_SUFFIX}"))]
        self._entries = {entry.name: entry for entry in found if entry}
        self._last = max((entry.number for entry in self._entries.values()), default=0)
        for left in folder.glob("*.tmp"):
            left.unlink(missing_ok=True)

    @property
    def entries(self) -> tuple[Allocation, ...]:
        """All allocations, oldest first."""
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.number))

    def add(self, resource: str, slots: Iterable[str]) -> Allocation:
        """Store a new allocation of these slots; it is safe on disk when this returns."""
        self._last += 1
        entry = Allocation(secrets.token_hex(_NAME_BYTES), self._last, resource, frozenset(slots))
        text = encode(_Entry(ALLOCATION.version, entry.number, resource, sorted(entry.slots)))
        write_atomically(self._folder / (entry.name + _SUFFIX), text, lasting=True)
        self._entries[entry.name] = entry
        return entry

    def remove(self, name: str) -> None:
        """Delete an allocation whose container will not start again."""
        (self._folder / (name + _SUFFIX)).unlink(missing_ok=True)
        self._entries.pop(name, None)


def _read(file: Path) -> Allocation | None:
    try:
        raw = ALLOCATION.decode(file.read_bytes(), _Entry)
    except NewerDocument as error:
        log.warning("Kept an allocation that a newer milligpu wrote", file=str(file), error=error.message)
        return None
    except BadFormat:
        file.unlink(missing_ok=True)
        return None
    return Allocation(file.stem, raw.number, raw.resource, frozenset(raw.slots))
