"""The page on which a card shows what it does and for whom: mirrors `native/softgpu/activity.h`.

The daemon makes one per card and hands it to every client. Slots are opened and closed here, so that a client that
was killed leaves neither a slot nor a place in the card's timeline.
"""

import ctypes
import mmap
import os
import struct
import time
from dataclasses import dataclass
from functools import cache

from milligpu.native import library

_HEAD = struct.Struct("<4Id4Q")
_SLOT = struct.Struct("<2I5Q")
_FAULTS, _FAULTS_AT = struct.Struct("<2I"), 96
_SLOTS, _SLOT_BYTES, _FIRST_SLOT = 512, 3144, 192
PAGE_BYTES = _FIRST_SLOT + _SLOTS * _SLOT_BYTES


@dataclass(frozen=True, slots=True)
class Usage:
    """What one context did so far; times are in nanoseconds."""

    pid: int
    busy: int
    copy_busy: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """Launches in modelled time that the CPU finished after the modelled card would have."""

    count: int
    worst: int
    total: int


class Activity:
    """One card's page."""

    def __init__(self, speed: float = 0.0) -> None:
        self.descriptor = os.memfd_create("milligpu-activity", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, PAGE_BYTES)
        self._memory = mmap.mmap(self.descriptor, PAGE_BYTES)
        self._page = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        self.speed = speed
        native().activity_start(self._page, speed)

    def open(self, pid: int) -> int | None:
        """A slot for a new context of this process; None when there are too many."""
        slot = native().activity_open(self._page, pid)
        return None if slot < 0 else slot

    def close(self, slot: int) -> None:
        """The context is gone, and what it still had to do with it."""
        native().activity_close(self._page, slot, time.monotonic_ns())

    def fail(self, status: int) -> None:
        """All contexts that there are end with this error; those opened later are sound."""
        faults, _ = _FAULTS.unpack_from(self._memory, _FAULTS_AT)
        _FAULTS.pack_into(self._memory, _FAULTS_AT, faults, status)
        _FAULTS.pack_into(self._memory, _FAULTS_AT, (faults + 1) & 0xFFFFFFFF, status)

    def read(self, slot: int) -> Usage:
        """How a context stands now."""
        busy = native().activity_busy(self._page, slot, time.monotonic_ns())
        pid, _, _, _, *copies = _SLOT.unpack_from(self._memory, _FIRST_SLOT + slot * _SLOT_BYTES)
        return Usage(pid, busy, *copies)

    def ended_busy(self) -> int:
        """What contexts did that are gone."""
        return _HEAD.unpack_from(self._memory)[5]

    def lateness(self) -> Lateness:
        """Whether times in modelled time can be trusted."""
        return Lateness(*_HEAD.unpack_from(self._memory)[6:9])


@cache
def native() -> ctypes.CDLL:
    """The functions of `activity.h`."""
    found = ctypes.CDLL(str(library("libmilligpu-activity.so")))
    page, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    signatures = {
        "activity_start": (None, page, ctypes.c_double),
        "activity_open": (ctypes.c_int, page, u32),
        "activity_close": (None, page, u32, u64),
        "activity_busy": (u64, page, u32, u64),
        "timeline_advance": (None, page, u64),
        "timeline_submit": (u64, page, u32, u64, u64, u64),
        "timeline_predict": (u64, page, u32, u64, u64),
        "timeline_copy": (u64, page, u32, u64, u64),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
