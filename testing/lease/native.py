"""Python bindings of the pure parts of `native/lease`; their sizes are checked against the library's."""

import ctypes
from functools import cache

from milligpu.native import library

TENANTS, GPUS, PAGE_GPUS = 64, 64, 16
ACTIVE, NEAR, DRAINED, SOON = 1, 2, 4, 8
CONTENDED, TOGETHER = 2, 4
OVERLAP, PREDICTED = 200_000, 100_000
GO, FULL, OUTSIDE = range(3)


class Account(ctypes.Structure):
    """`struct lease_account`."""

    _fields_ = (
        ("weight", ctypes.c_double),
        ("share", ctypes.c_double),
        ("limit", ctypes.c_double),
        ("priority", ctypes.c_int32),
        ("used", ctypes.c_uint32),
        ("demand", ctypes.c_uint32),
        ("suspect", ctypes.c_uint32),
        ("admitted", ctypes.c_uint32),
        ("virtual_time", ctypes.c_double),
        ("tokens", ctypes.c_double),
        ("debt", ctypes.c_double),
        ("touched", ctypes.c_int64),
        ("active_at", ctypes.c_int64),
        ("charged", ctypes.c_int64),
        ("waited", ctypes.c_int64),
        ("throttled", ctypes.c_int64),
    )


class Accounts(ctypes.Structure):
    """`struct lease_accounts`."""

    _fields_ = (("count", ctypes.c_int32), ("least_virtual_time", ctypes.c_double), ("of", Account * TENANTS))


class Words(ctypes.Structure):
    """`struct mg_gpu_limits`, into which the arbiter writes leases."""

    _fields_ = (
        ("before", ctypes.c_char * 64),
        ("until", ctypes.c_uint64),
        ("generation", ctypes.c_uint64),
        ("time_slot_start_us", ctypes.c_uint32),
        ("time_slot_length_us", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 8),
    )


class Tenant(ctypes.Structure):
    """`struct lease_tenant`."""

    _fields_ = (
        ("words", ctypes.POINTER(Words)),
        ("present", ctypes.c_uint32),
        ("active", ctypes.c_uint32),
        ("near", ctypes.c_uint32),
        ("drained", ctypes.c_uint32),
        ("ends", ctypes.c_int64),
        ("left_at", ctypes.c_int64),
        ("spoke_at", ctypes.c_int64),
        ("wanted_at", ctypes.c_int64),
        ("burst", ctypes.c_int64),
        ("lent", ctypes.c_int64),
        ("lent_at", ctypes.c_int64),
    )


class Gpu(ctypes.Structure):
    """`struct lease_gpu`."""

    _fields_ = (
        ("accounts", Accounts),
        ("tenants", Tenant * TENANTS),
        ("holder", ctypes.c_int),
        ("left", ctypes.c_int),
        ("lender", ctypes.c_int),
        ("together", ctypes.c_int),
        ("catches_up", ctypes.c_int),
        ("parked", ctypes.c_int),
        ("late", ctypes.c_uint64),
        ("turn_at", ctypes.c_int64),
        ("until", ctypes.c_int64),
        ("charge_from", ctypes.c_int64),
        ("decide_at", ctypes.c_int64),
        ("silent_at", ctypes.c_int64),
        ("retry_at", ctypes.c_int64),
        ("wake", ctypes.c_uint64),
        ("turns", ctypes.c_uint64),
    )


class Span(ctypes.Structure):
    """`struct lease_span`."""

    _fields_ = (
        ("gpus", ctypes.c_int32 * PAGE_GPUS),
        ("entries", ctypes.c_int32 * PAGE_GPUS),
        ("wanted", ctypes.c_uint64),
        ("holds", ctypes.c_uint64),
        ("turn_at", ctypes.c_int64),
        ("idle_at", ctypes.c_int64),
        ("next", ctypes.c_void_p),
    )


class Group(ctypes.Structure):
    """`struct lease_group`."""

    _fields_ = (
        ("members", ctypes.c_uint64),
        ("behind", ctypes.c_uint64),
        ("behind_at", ctypes.c_int64),
        ("until", ctypes.c_int64),
        ("retry_at", ctypes.c_int64),
    )


class Gangs(ctypes.Structure):
    """`struct lease_gangs`."""

    _fields_ = (
        ("gpus", ctypes.POINTER(Gpu) * GPUS),
        ("spans", ctypes.c_void_p),
        ("grouped", ctypes.c_uint64),
        ("firsts", ctypes.c_uint64),
        ("groups", Group * GPUS),
    )


class Process(ctypes.Structure):
    """`struct lease_process`."""

    _fields_ = (
        ("present", ctypes.c_uint32),
        ("active", ctypes.c_uint32),
        ("near", ctypes.c_uint64),
        ("drained", ctypes.c_uint64),
    )


class Message(ctypes.Structure):
    """`struct lease_message`."""

    _fields_ = (
        ("gpu", ctypes.c_uint8),
        ("state", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16),
        ("generation", ctypes.c_uint32),
        ("stamp", ctypes.c_int64),
    )


class Pace(ctypes.Structure):
    """`struct pace`."""

    _fields_ = (
        ("pieces", ctypes.c_uint32),
        ("unknown", ctypes.c_uint32),
        ("estimate", ctypes.c_int64),
        ("oldest", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("latest", ctypes.c_int64),
        ("frame", ctypes.c_int64),
        ("credit", ctypes.c_int64),
        ("excess", ctypes.c_int64),
    )


class Gaps(ctypes.Structure):
    """`struct pace_gaps`."""

    _fields_ = (("often", ctypes.c_double), ("usual", ctypes.c_double))


class Estimates(ctypes.Structure):
    """`struct pace_estimates`."""

    _fields_ = (("learnt", ctypes.c_uint64), ("kinds", ctypes.c_byte * (512 * 4 * 40)))


@cache
def core() -> ctypes.CDLL:
    """Load the library and declare its functions."""
    loaded = ctypes.CDLL(str(library("libmilligpu-arbiter.so")))
    mirrored = [
        ctypes.sizeof(each) for each in (Account, Tenant, Gpu, Process, Message, Pace, Estimates, Span, Gangs)
    ]
    if list((ctypes.c_uint32 * len(mirrored)).in_dll(loaded, "lease_sizes")) != mirrored:
        raise TypeError(f"the structures of native/lease have other sizes than {mirrored}")
    integer, number, address = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    loaded.lease_choose.argtypes = (address, number, integer, number, address)
    loaded.lease_charge.argtypes = (address, integer, number, number, integer)
    loaded.lease_admit.argtypes = (address, integer, number)
    loaded.lease_touch.argtypes = (address, number, integer)
    loaded.lease_configure.argtypes = (address, integer, integer, integer, integer, number)
    loaded.lease_quantum.restype = number
    loaded.lease_gpu_configure.argtypes = (address, integer, integer, integer, integer, integer, number)
    loaded.lease_gpu_remove.argtypes = (address, integer, number)
    loaded.lease_gpu_say.argtypes = (address, integer, address, address, number)
    loaded.lease_gpu_leave.argtypes = (address, integer, address, number)
    loaded.lease_gpu_timer.argtypes = (address, number)
    loaded.lease_gpu_settle.argtypes = (address, number)
    loaded.lease_gpu_due.restype = number
    loaded.lease_gangs_add.argtypes = (address, address)
    loaded.lease_gangs_group.argtypes = (address, number)
    loaded.lease_gangs_step.argtypes = (address, number)
    loaded.lease_gangs_due.argtypes = (address, number)
    loaded.lease_gangs_due.restype = number
    loaded.pace_estimate.argtypes = (address, ctypes.c_uint64, ctypes.c_uint64)
    loaded.pace_estimate.restype = number
    loaded.pace_known.argtypes = (address, ctypes.c_uint64)
    loaded.pace_learn.argtypes = (address, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double, integer)
    loaded.pace_uncertain.argtypes = (address, number)
    loaded.pace_key.argtypes = (address, ctypes.c_uint64)
    loaded.pace_key.restype = ctypes.c_uint64
    loaded.pace_left.argtypes = (address, number)
    loaded.pace_left.restype = number
    loaded.pace_look_at.argtypes = (address, number)
    loaded.pace_look_at.restype = number
    loaded.pace_gate.argtypes = (address, number, number, ctypes.c_uint, number, address)
    loaded.pace_slot.argtypes = (address, number, ctypes.c_uint32, ctypes.c_uint32, number, address)
    loaded.pace_gap.argtypes = (address, number)
    loaded.pace_hold.restype = number
    return loaded
