"""The arbiter, which hands the lease of each GPU around among its tenants; its loop is native (`native/lease`).

A tenant's limits page is its configuration: the arbiter reads a page that was changed in place within a heartbeat.
Calls only add and remove tenants, and read how the time was used.
"""

import ctypes
import errno
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milligpu.model.errors import BadRequest, Unavailable
from milligpu.native import library
from milligpu.wire.pages import PAGE_GPUS


class _Account(ctypes.Structure):
    _fields_ = (
        ("charged", ctypes.c_int64),
        ("waited", ctypes.c_int64),
        ("throttled", ctypes.c_int64),
        ("wanting", ctypes.c_uint32),
        ("holding", ctypes.c_uint32),
        ("suspect", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Totals(ctypes.Structure):
    _fields_ = (("cpu_ns", ctypes.c_int64), ("turns", ctypes.c_uint64), ("messages", ctypes.c_uint64))


assert ctypes.sizeof(_Account) == 40
assert ctypes.sizeof(_Totals) == 24


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What a tenant had of one GPU since it was added."""

    charged_ns: int
    """GPU time for which it held the lease, and its work that went on after the lease."""
    waited_ns: int
    """Time in which it wanted the lease and did not have it."""
    throttled_ns: int
    """The part of the waiting time that its own limit caused."""
    wanting: int
    """How many of its processes want the GPU or use it now."""
    holding: bool
    suspect: bool
    """Whether it kept the GPU past its deadline and is silent since; it gets no turn until it answers."""


@dataclass(frozen=True, slots=True)
class ArbiterCost:
    """What arbitration cost so far."""

    cpu_ns: int
    turns: int
    messages: int


class Arbiter:
    """All leases of this machine. One per machine: two would grant the same GPU twice."""

    def __init__(self) -> None:
        self._native = _native()
        self._handle: int | None = self._native.arbiter_start()
        if not self._handle:
            raise Unavailable(f"no arbiter: {os.strerror(ctypes.get_errno())}")

    def add(self, folder: Path) -> int:
        """Add the tenant of this directory, which must have a limits page; return the tenant's number."""
        number = self._native.arbiter_add(self._open(), os.fsencode(folder))
        if number == -errno.ENOSPC:
            raise Unavailable("too many tenants on one GPU, or on this machine")
        if number == -errno.EINVAL:
            raise BadRequest("limits page", str(folder / "limits"), "a valid limits page")
        if number < 0:
            raise Unavailable(f"{folder}: {os.strerror(-number)}")
        return number

    def remove(self, tenant: int) -> None:
        """Remove a tenant: end its leases and connections."""
        if self._native.arbiter_remove(self._open(), tenant) < 0:
            raise BadRequest("tenant", tenant, "one that was added and not removed")

    def accounts(self, tenant: int) -> tuple[LeaseUse, ...]:
        """Return a tenant's use of its GPUs, in the order of its limits page."""
        found = (_Account * PAGE_GPUS)()
        count = self._native.arbiter_read(self._open(), tenant, found)
        if count < 0:
            raise BadRequest("tenant", tenant, "one that was added and not removed")
        return tuple(
            LeaseUse(one.charged, one.waited, one.throttled, one.wanting, bool(one.holding), bool(one.suspect))
            for one in found[:count]
        )

    def totals(self) -> ArbiterCost:
        """What arbitration cost so far."""
        totals = _Totals()
        self._native.arbiter_read_totals(self._open(), ctypes.byref(totals))
        return ArbiterCost(totals.cpu_ns, totals.turns, totals.messages)

    def close(self) -> None:
        """End the thread. Tenants go on in their time slots until another arbiter starts."""
        if self._handle:
            self._native.arbiter_stop(self._handle)
        self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            raise Unavailable("the arbiter was closed")
        return self._handle


@cache
def _native() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library("libmilligpu-arbiter.so")), use_errno=True)
    loaded.arbiter_start.restype = ctypes.c_void_p
    loaded.arbiter_stop.argtypes = (ctypes.c_void_p,)
    loaded.arbiter_add.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    loaded.arbiter_remove.argtypes = (ctypes.c_void_p, ctypes.c_int)
    loaded.arbiter_read.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Account))
    loaded.arbiter_read_totals.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Totals))
    return loaded
