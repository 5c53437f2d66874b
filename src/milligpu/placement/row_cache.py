"""Rows of nodes that were looked up before, kept until nodes are added or removed."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from milligpu.placement.snapshot import BoolArray, Snapshot

Key = TypeVar("Key", bound=Hashable)
Rows = TypeVar("Rows", BoolArray, BoolArray | None)


class RowCache(Generic[Key, Rows]):
    """At most `entries_max` masks of a snapshot's rows, by whatever describes the nodes."""

    def __init__(self, snapshot: Snapshot, entries_max: int) -> None:
        self._snapshot = snapshot
        self._entries_max = entries_max
        self._entries: dict[Key, Rows] = {}
        self._rows_version = -1

    def get(self, key: Key, find: Callable[[], Rows]) -> Rows:
        """Return the rows of a key; calls `find` if they are not known."""
        if self._rows_version != self._snapshot.rows_version:
            self._rows_version = self._snapshot.rows_version
            self._entries.clear()
        if key not in self._entries:
            if len(self._entries) >= self._entries_max:
                self._entries.clear()
            self._entries[key] = find()
        return self._entries[key]

    def clear(self) -> None:
        self._entries.clear()
