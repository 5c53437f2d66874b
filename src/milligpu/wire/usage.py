"""The usage page: what a tenant says it uses, with one process slot for each of its processes.

A tenant can corrupt only its own page. No decision about other tenants reads it, and the audit checks its numbers.
"""

import struct
from dataclasses import dataclass

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.wire.documents import DocumentFormat
from milligpu.wire.pages import PAGE_GPUS, check_head

USAGE = DocumentFormat("usage page")
USAGE_MAGIC = 0x3155474D  # "MGU1"
# One slot for each process of a container; 300 at once is the most that one tenant was seen to need.
USAGE_SLOTS = 512
USAGE_SLOTS_OFFSET = 4096

# magic, version, slots, gpus, padding to 64.
_USAGE_HEADER = struct.Struct("<IIII48x")
# bytes used now, most bytes ever, allocations refused, padding to 64.
_ACCOUNT = struct.Struct("<QQQ40x")
# pid, state, the process's start time (clock ticks after boot: the kernel reuses pids), bytes.
_SLOT = struct.Struct(f"<IIQ{PAGE_GPUS}Q")

USAGE_SIZE = USAGE_SLOTS_OFFSET + USAGE_SLOTS * _SLOT.size

assert _USAGE_HEADER.size == _ACCOUNT.size == 64
assert _SLOT.size == 144
assert _USAGE_HEADER.size + PAGE_GPUS * _ACCOUNT.size <= USAGE_SLOTS_OFFSET
assert USAGE_SIZE % 4096 == 0


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """What a tenant uses of one GPU."""

    used: int = 0
    peak: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """What one process of the tenant holds, per GPU."""

    pid: int
    started: int
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UsagePage:
    """The contents of a usage page; only as true as the tenant is honest."""

    accounts: tuple[MemoryAccount, ...]
    processes: tuple[ProcessSlot, ...] = ()


def encode_usage(page: UsagePage) -> bytes:
    """Write a whole page; the agent makes an empty one for each container."""
    if len(page.accounts) > PAGE_GPUS:
        raise BadRequest("accounts", len(page.accounts), f"at most {PAGE_GPUS}")
    if len(page.processes) > USAGE_SLOTS:
        raise BadRequest("processes", len(page.processes), f"at most {USAGE_SLOTS}")
    out = bytearray(USAGE_SIZE)
    _USAGE_HEADER.pack_into(out, 0, USAGE_MAGIC, USAGE.version, USAGE_SLOTS, len(page.accounts))
    for number, account in enumerate(page.accounts):
        offset = _USAGE_HEADER.size + number * _ACCOUNT.size
        _ACCOUNT.pack_into(out, offset, account.used, account.peak, account.refused)
    for number, process in enumerate(page.processes):
        used = process.used + (0,) * (PAGE_GPUS - len(process.used))
        offset = USAGE_SLOTS_OFFSET + number * _SLOT.size
        _SLOT.pack_into(out, offset, process.pid, 1, process.started, *used)
    return bytes(out)


def decode_usage(data: bytes) -> UsagePage:
    """Read what a tenant wrote: any bytes at all may be there, and none may do harm."""
    if len(data) != USAGE_SIZE:
        raise BadFormat(USAGE.name, f"{len(data)} bytes, must be {USAGE_SIZE}")
    magic, version, slots, count = _USAGE_HEADER.unpack_from(data)
    check_head(USAGE, magic, USAGE_MAGIC, version)
    if slots != USAGE_SLOTS or count > PAGE_GPUS:
        raise BadFormat(
            USAGE.name, f"{slots} slots and {count} GPUs, must be {USAGE_SLOTS} and at most {PAGE_GPUS}"
        )
    accounts = tuple(
        MemoryAccount(*_ACCOUNT.unpack_from(data, _USAGE_HEADER.size + number * _ACCOUNT.size))
        for number in range(count)
    )
    processes: list[ProcessSlot] = []
    for number in range(USAGE_SLOTS):
        pid, state, started, *used = _SLOT.unpack_from(data, USAGE_SLOTS_OFFSET + number * _SLOT.size)
        if state:
            processes.append(ProcessSlot(pid, started, tuple(used[:count])))
    return UsagePage(accounts, tuple(processes))
