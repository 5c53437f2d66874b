"""The usage page: a container's own account, one slot for each of its processes.

A tenant can spoil only its own page. No decision about others reads it, and what it claims is checked elsewhere.
"""

import struct
from dataclasses import dataclass

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.wire.pages import PAGE_GPUS, PAGES_VERSION, check_head

USAGE_MAGIC = 0x3155474D  # "MGU1"
# One slot for each process of a container; 300 at once is what we have seen asked of one tenant.
USAGE_SLOTS = 512
USAGE_SLOTS_OFFSET = 4096

# magic, version, slots, gpus, padding to 64.
_USAGE_HEADER = struct.Struct("<IIII48x")
# bytes used now, most bytes ever, allocations refused, launches waiting for the lease, padding to 64.
_ACCOUNT = struct.Struct("<QQQI36x")
# pid, state, the process's start time (clock ticks after boot: a pid alone may be somebody else's by now), bytes.
_SLOT = struct.Struct(f"<IIQ{PAGE_GPUS}Q")

USAGE_SIZE = USAGE_SLOTS_OFFSET + USAGE_SLOTS * _SLOT.size

assert _USAGE_HEADER.size == _ACCOUNT.size == 64
assert _SLOT.size == 144
assert _USAGE_HEADER.size + PAGE_GPUS * _ACCOUNT.size <= USAGE_SLOTS_OFFSET
assert USAGE_SIZE % 4096 == 0


@dataclass(frozen=True, slots=True)
class Account:
    """What a container uses of one card."""

    used: int = 0
    peak: int = 0
    refused: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """What one process of the container holds, per card."""

    pid: int
    started: int
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UsagePage:
    """A container's own account; true as far as the container is honest."""

    accounts: tuple[Account, ...]
    processes: tuple[ProcessSlot, ...] = ()


def encode_usage(page: UsagePage) -> bytes:
    """Write a whole page; the agent makes an empty one for each container."""
    if len(page.accounts) > PAGE_GPUS:
        raise BadRequest("accounts", len(page.accounts), f"at most {PAGE_GPUS}")
    if len(page.processes) > USAGE_SLOTS:
        raise BadRequest("processes", len(page.processes), f"at most {USAGE_SLOTS}")
    out = bytearray(USAGE_SIZE)
    _USAGE_HEADER.pack_into(out, 0, USAGE_MAGIC, PAGES_VERSION, USAGE_SLOTS, len(page.accounts))
    for number, account in enumerate(page.accounts):
        offset = _USAGE_HEADER.size + number * _ACCOUNT.size
        _ACCOUNT.pack_into(out, offset, account.used, account.peak, account.refused, account.waiting)
    for number, process in enumerate(page.processes):
        used = process.used + (0,) * (PAGE_GPUS - len(process.used))
        offset = USAGE_SLOTS_OFFSET + number * _SLOT.size
        _SLOT.pack_into(out, offset, process.pid, 1, process.started, *used)
    return bytes(out)


def decode_usage(data: bytes) -> UsagePage:
    """Read what a tenant wrote: any bytes at all may be there, and none may do harm."""
    if len(data) != USAGE_SIZE:
        raise BadFormat("usage page", f"{len(data)} bytes, want {USAGE_SIZE}")
    magic, version, slots, count = _USAGE_HEADER.unpack_from(data)
    check_head("usage page", magic, USAGE_MAGIC, version)
    if slots != USAGE_SLOTS or count > PAGE_GPUS:
        raise BadFormat("usage page", f"slots={slots}, gpus={count}: want {USAGE_SLOTS} and at most {PAGE_GPUS}")
    accounts = tuple(
        Account(*_ACCOUNT.unpack_from(data, _USAGE_HEADER.size + number * _ACCOUNT.size)) for number in range(count)
    )
    processes: list[ProcessSlot] = []
    for number in range(USAGE_SLOTS):
        pid, state, started, *used = _SLOT.unpack_from(data, USAGE_SLOTS_OFFSET + number * _SLOT.size)
        if state:
            processes.append(ProcessSlot(pid, started, tuple(used[:count])))
    return UsagePage(accounts, tuple(processes))
