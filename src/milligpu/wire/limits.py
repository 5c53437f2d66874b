"""The limits page: what one tenant may use, and until when it has the lease of each GPU.

Written by the agent, mounted read-only for the tenant: no process inside can raise its own limits.
"""

import struct
from dataclasses import dataclass

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import UUID_MAX, Gpu, parse_uuid
from milligpu.model.grant import GpuShare
from milligpu.model.overheads import GRANULE_LEAST, GRANULE_MOST, GpuOverheads
from milligpu.model.policy import PRIORITY_MAX, SharePolicy
from milligpu.model.units import BYTES_PER_MIB, WHOLE, Milli
from milligpu.wire.documents import DocumentFormat
from milligpu.wire.pages import PAGE_GPUS, check_head

LIMITS = DocumentFormat("limits page")
LIMITS_MAGIC = 0x314C474D  # "MGL1"

LIMITS_SIZE = 4096
# While no arbiter runs, time is divided into frames, and each tenant has one time slot of every frame.
FRAME_US = 100_000

# magic, version, sequence, gpu count, heartbeat ns, grant generation, priority, padding to 64.
_HEADER = struct.Struct("<IIIIQQI28x")
# uuid, milli, limit, memory limit; then, on their own cache line, what the arbiter changes: lease until ns,
# lease generation, slot start us, slot length us, policy, the arbiter's flags, context bytes, granule bytes,
# padding to 128.
_ENTRY = struct.Struct(f"<{UUID_MAX + 1}sIIQQQIII4xQI20x")

assert _HEADER.size == 64
assert _ENTRY.size == 128
assert _HEADER.size + PAGE_GPUS * _ENTRY.size <= LIMITS_SIZE

_POLICY_CODES = {SharePolicy.FIXED: 1, SharePolicy.EQUAL: 2, SharePolicy.BEST_EFFORT: 3}
_POLICIES = {code: policy for policy, code in _POLICY_CODES.items()}


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """One GPU's line of the limits page."""

    uuid: str
    milli: Milli
    """The share, in thousandths of the GPU's own time; a vGPU's time is a part of its card's."""
    limit: Milli
    """The most that the tenant may use, likewise."""
    memory_cap: int
    """Bytes."""
    policy: SharePolicy
    slot_start_us: int = 0
    slot_length_us: int = 0
    lease_until_ns: int = 0
    lease_generation: int = 0
    context_bytes: int = 0
    """Memory of one context: a process cannot measure it on a GPU that others use, but the agent can."""
    granule_bytes: int = 0
    """The driver gives memory in multiples of this; 0: not known, counted in pages of 4 KiB."""


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """What one tenant may use; times are of CLOCK_MONOTONIC."""

    gpus: tuple[GpuLimits, ...]
    priority: int = 0
    generation: int = 1
    """Of the grant it was written from."""
    heartbeat_ns: int = 0


def gpu_limits(
    held: GpuShare, gpu: Gpu, *, slot_start_us: int, slot_length_us: int, overheads: GpuOverheads
) -> GpuLimits:
    """A share of a GPU as a line of the page."""
    return GpuLimits(
        held.gpu,
        gpu.time_of(held.share.milli),
        gpu.time_of(held.share.limit_on(gpu.policy, gpu.limit)),
        held.share.mib * BYTES_PER_MIB,
        gpu.policy,
        slot_start_us,
        slot_length_us,
        context_bytes=overheads.context_bytes,
        granule_bytes=overheads.granule_bytes,
    )


def encode_limits(page: LimitsPage) -> bytes:
    """Write a whole page, at rest (an even sequence number)."""
    _check_limits(page)
    out = bytearray(LIMITS_SIZE)
    _HEADER.pack_into(
        out, 0, LIMITS_MAGIC, LIMITS.version, 0, len(page.gpus), page.heartbeat_ns, page.generation, page.priority
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
            gpu.granule_bytes,
        )
    return bytes(out)


def decode_limits(data: bytes) -> LimitsPage:
    """Read a page at rest, as tools and tests do; a process that is being limited reads it in C."""
    if len(data) != LIMITS_SIZE:
        raise BadFormat(LIMITS.name, f"{len(data)} bytes, must be {LIMITS_SIZE}")
    magic, version, sequence, count, heartbeat, generation, priority = _HEADER.unpack_from(data)
    check_head(LIMITS, magic, LIMITS_MAGIC, version)
    if sequence % 2:
        raise BadFormat(LIMITS.name, f"sequence {sequence} is odd: it is being written")
    if count > PAGE_GPUS:
        raise BadFormat(LIMITS.name, f"{count} GPUs, must be at most {PAGE_GPUS}")
    try:
        gpus = tuple(_gpu(data, _HEADER.size + number * _ENTRY.size) for number in range(count))
        page = LimitsPage(gpus, priority, generation, heartbeat)
        _check_limits(page)
    except BadRequest as error:
        raise BadFormat(LIMITS.name, error.message) from None
    return page


def _gpu(data: bytes, offset: int) -> GpuLimits:
    uuid, milli, limit, cap, until, generation, start, length, policy, context, granule = _ENTRY.unpack_from(
        data, offset
    )
    if policy not in _POLICIES:
        raise BadRequest("policy", policy, "1, 2 or 3")
    text = uuid.rstrip(b"\0").decode("ascii", "replace")
    return GpuLimits(
        text, Milli(milli), Milli(limit), cap, _POLICIES[policy], start, length, until, generation, context, granule
    )


def _check_limits(page: LimitsPage) -> None:
    if len(page.gpus) > PAGE_GPUS:
        raise BadRequest("gpus", len(page.gpus), f"at most {PAGE_GPUS}")
    if not 0 <= page.priority <= PRIORITY_MAX:
        raise BadRequest("priority", page.priority, f"from 0 to {PRIORITY_MAX}")
    for gpu in page.gpus:
        parse_uuid("uuid", gpu.uuid)
        if not 0 <= gpu.milli <= gpu.limit <= WHOLE or gpu.limit == 0:
            raise BadRequest("milli", gpu.milli, f"0 <= milli <= limit <= {WHOLE} (limit={gpu.limit})")
        if gpu.memory_cap < 1:
            raise BadRequest("memory_cap", gpu.memory_cap, "1 byte or more")
        if gpu.granule_bytes and (
            gpu.granule_bytes & (gpu.granule_bytes - 1) or not GRANULE_LEAST <= gpu.granule_bytes <= GRANULE_MOST
        ):
            want = f"0 or a power of two from {GRANULE_LEAST} to {GRANULE_MOST}"
            raise BadRequest("granule_bytes", gpu.granule_bytes, want)
        if gpu.slot_start_us + gpu.slot_length_us > FRAME_US:
            raise BadRequest("slot_length_us", gpu.slot_length_us, f"an end within the frame of {FRAME_US} us")
