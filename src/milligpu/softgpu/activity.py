"""The activity page of a GPU, which shows the work of each context: mirrors `native/softgpu/activity.h`.

The daemon creates one page per GPU and passes it to every client. Only the daemon opens and closes slots, so a
killed client leaves neither a slot nor a place in the GPU's timeline.
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
_PEERS, _PEERS_AT = struct.Struct("<2Q"), 168
_SLOTS, _SLOT_BYTES, _FIRST_SLOT = 512, 3144, 192
PAGE_BYTES = _FIRST_SLOT + _SLOTS * _SLOT_BYTES


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What one context has done so far; times are in nanoseconds."""

    pid: int
    busy: int
    copy_busy: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """Launches in modeled time that the CPU finished later than the modeled GPU would have."""

    count: int
    worst: int
    total: int


class Activity:
    """The activity page of one GPU."""

    def __init__(self, speed: float = 0.0) -> None:
        self.descriptor = os.memfd_create("milligpu-activity", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, PAGE_BYTES)
        self._memory = mmap.mmap(self.descriptor, PAGE_BYTES)
        self._page = ctypes.byref(ctypes.c_char.from_buffer(self._memory))
        self.speed = speed
        self._shown: dict[int, int] = {}
        native().activity_start(self._page, speed)

    def open(self, pid: int) -> int | None:
        """Open a slot for a new context of this process; None if all slots are taken."""
        slot = native().activity_open(self._page, pid)
        self._shown.pop(slot, None)
        return None if slot < 0 else slot

    def close(self, slot: int) -> None:
        """Close a context's slot and drop its queued work."""
        native().activity_close(self._page, slot, time.monotonic_ns())

    def fail(self, status: int) -> None:
        """End all open contexts with this error; contexts opened later are not affected."""
        faults, _ = _FAULTS.unpack_from(self._memory, _FAULTS_AT)
        _FAULTS.pack_into(self._memory, _FAULTS_AT, faults, status)
        _FAULTS.pack_into(self._memory, _FAULTS_AT, (faults + 1) & 0xFFFFFFFF, status)

    def read(self, slot: int) -> ProcessActivity:
        """Read what a context has done so far; never less than before.

        Of work that is running, only the time since it began is known, and a part of that may turn out to be the
        time in which it waited for a CPU.
        """
        busy = max(self._shown.get(slot, 0), native().activity_busy(self._page, slot, time.monotonic_ns()))
        self._shown[slot] = busy
        pid, _, _, _, *copies = _SLOT.unpack_from(self._memory, _FIRST_SLOT + slot * _SLOT_BYTES)
        return ProcessActivity(pid, busy, *copies)

    def peer_bytes(self) -> tuple[int, int]:
        """Bytes that came from other GPUs and went to them, so far."""
        received, sent = _PEERS.unpack_from(self._memory, _PEERS_AT)
        return received, sent

    def ended_busy(self) -> int:
        """Nanoseconds of work done by contexts that are closed."""
        return _HEAD.unpack_from(self._memory)[5]

    def lateness(self) -> Lateness:
        """Late launches so far: with many of them, durations in modeled time are not reliable."""
        return Lateness(*_HEAD.unpack_from(self._memory)[6:9])


@cache
def native() -> ctypes.CDLL:
    """Load the functions of `activity.h`."""
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
