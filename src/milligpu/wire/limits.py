"""The limits page: what one container may use, and until when it holds each GPU.

Written by the agent, mounted read-only for the tenant: no process inside can raise its own limits.
"""

import struct
from dataclasses import dataclass

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import UUID_MAX, parse_uuid
from milligpu.model.qos import PRIORITY_MAX, Policy
from milligpu.model.units import WHOLE, Milli
from milligpu.wire.pages import PAGE_GPUS, PAGES_VERSION, check_head

LIMITS_MAGIC = 0x314C474D  # "MGL1"

LIMITS_SIZE = 4096
# While the arbiter is away, time is cut into frames, and each tenant owns one slot of every frame.
FRAME_US = 100_000

# magic, version, sequence, gpu count, heartbeat ns, grant generation, priority, padding to 64.
_HEADER = struct.Struct("<IIIIQQI28x")
# uuid, milli, limit, memory cap; then on a cache line of their own what the arbiter changes: lease until ns,
# lease generation, slot start us, slot length us, policy, the arbiter's flags, context bytes, padding to 128.
_ENTRY = struct.Struct(f"<{UUID_MAX + 1}sIIQQQIII4xQ24x")

assert _HEADER.size == 64
assert _ENTRY.size == 128
assert _HEADER.size + PAGE_GPUS * _ENTRY.size <= LIMITS_SIZE

_POLICY_CODES = {Policy.FIXED: 1, Policy.EQUAL: 2, Policy.BEST_EFFORT: 3}
_POLICIES = {code: policy for policy, code in _POLICY_CODES.items()}


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """One card's line of the limits page."""

    uuid: str
    milli: Milli
    limit: Milli
    memory_cap: int
    """Bytes."""
    policy: Policy
    slot_start_us: int = 0
    slot_length_us: int = 0
    lease_until_ns: int = 0
    lease_generation: int = 0
    context_bytes: int = 0
    """What each context takes of the card: a process cannot measure it on a card that others use, the agent can."""


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """What one container may use; times are of CLOCK_MONOTONIC."""

    gpus: tuple[GpuLimits, ...]
    priority: int = 0
    generation: int = 1
    """Of the grant it was written from."""
    heartbeat_ns: int = 0


def encode_limits(page: LimitsPage) -> bytes:
    """Write a whole page, at rest (an even sequence number)."""
    _check_limits(page)
    out = bytearray(LIMITS_SIZE)
    _HEADER.pack_into(
        out, 0, LIMITS_MAGIC, PAGES_VERSION, 0, len(page.gpus), page.heartbeat_ns, page.generation, page.priority
    )
    for number, gpu in enumerate(page.gpus):
        _ENTRY.pack_into(
            out,
            _HEADER.size + number * _ENTRY.size,
            gpu.uuid.encode(),
            gpu.milli,
            gpu.limit,
            gpu.memory_cap,
            gpu.lease_until_ns,
            gpu.lease_generation,
            gpu.slot_start_us,
            gpu.slot_length_us,
            _POLICY_CODES[gpu.policy],
            gpu.context_bytes,
        )
    return bytes(out)


def decode_limits(data: bytes) -> LimitsPage:
    """Read a page at rest, as tools and tests do; a process that is being limited reads it in C."""
    if len(data) != LIMITS_SIZE:
        raise BadFormat("limits page", f"{len(data)} bytes, want {LIMITS_SIZE}")
    magic, version, sequence, count, heartbeat, generation, priority = _HEADER.unpack_from(data)
    check_head("limits page", magic, LIMITS_MAGIC, version)
    if sequence % 2:
        raise BadFormat("limits page", f"sequence={sequence}: being written, want an even number")
    if count > PAGE_GPUS:
        raise BadFormat("limits page", f"gpu count={count}: want at most {PAGE_GPUS}")
    try:
        gpus = tuple(_gpu(data, _HEADER.size + number * _ENTRY.size) for number in range(count))
        page = LimitsPage(gpus, priority, generation, heartbeat)
        _check_limits(page)
    except BadRequest as error:
        raise BadFormat("limits page", error.message) from None
    return page


def _gpu(data: bytes, offset: int) -> GpuLimits:
    uuid, milli, limit, cap, until, generation, start, length, policy, context = _ENTRY.unpack_from(data, offset)
    if policy not in _POLICIES:
        raise BadRequest("policy", policy, "1, 2 or 3")
    text = uuid.rstrip(b"\0").decode("ascii", "replace")
    return GpuLimits(
        text, Milli(milli), Milli(limit), cap, _POLICIES[policy], start, length, until, generation, context
    )


def _check_limits(page: LimitsPage) -> None:
    if len(page.gpus) > PAGE_GPUS:
        raise BadRequest("gpus", len(page.gpus), f"at most {PAGE_GPUS}")
    if not 0 <= page.priority <= PRIORITY_MAX:
        raise BadRequest("priority", page.priority, f"0 to {PRIORITY_MAX}")
    for gpu in page.gpus:
        parse_uuid("uuid", gpu.uuid)
        if not 0 <= gpu.milli <= gpu.limit <= WHOLE or gpu.limit == 0:
            raise BadRequest("milli", gpu.milli, f"0 <= milli <= limit <= {WHOLE} (limit={gpu.limit})")
        if gpu.memory_cap < 1:
            raise BadRequest("memory_cap", gpu.memory_cap, "1 byte or more")
        if gpu.slot_start_us + gpu.slot_length_us > FRAME_US:
            raise BadRequest("slot_length_us", gpu.slot_length_us, f"an end within the frame of {FRAME_US} us")
