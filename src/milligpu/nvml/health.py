"""Whether a GPU is healthy: a rule over its readings and the errors that the driver reports. Pure.

A GPU is unhealthy while it is lost, too hot, or has uncorrectable memory errors, while its driver asks for a reset,
and after an XID that no application caused. All but the XID can be seen to end. An XID is over when the driver
asked for a reset and no longer does, or when the GPU was lost and is back. Where neither is seen, it is over after
a quiet time, or when an admin clears the GPU, which starts a new `HealthHistory`.
"""

from dataclasses import dataclass, replace

from milligpu.model.gpu import GpuState
from milligpu.model.xid import APPLICATION_XIDS, describe_xid
from milligpu.nvml.readings import GpuReading, GpuVitals, LostGpu, Observation

# Errors of a broken GPU come back within minutes.
QUIET_SECONDS = 600.0
# A GPU that was too hot must cool down clearly, or it would alternate between healthy and unhealthy.
COOLER_DEGREES = 5


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """Whether new shares may go to a GPU."""

    state: GpuState
    message: str = ""


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """What is remembered of a GPU between two readings; a new one has no errors."""

    lost: bool = False
    silence: str = ""
    """Why a lost GPU counts as lost, in words."""
    reset_needed: bool = False
    uncorrected: int = 0
    hot: int | None = None
    xid: int | None = None
    xid_at: float = 0.0
    reset_seen: bool = False
    """Since the XID the driver asked for a reset, or the GPU was lost: the end of that also ends the XID."""


def note_xid(record: HealthHistory, xid: int, now: float) -> HealthHistory:
    """Add an error that the driver reported, unless an application caused it."""
    if xid in APPLICATION_XIDS:
        return record
    return replace(record, xid=xid, xid_at=now, reset_seen=False)


def note_reading(record: HealthHistory, seen: GpuVitals | LostGpu, now: float) -> HealthHistory:
    """Add a reading of the GPU, or that it is lost."""
    if isinstance(seen, LostGpu):
        return replace(record, lost=True, silence=seen.message, reset_seen=True)
    asks = seen.reset_needed is True
    record = replace(
        record,
        lost=False,
        silence="",
        reset_needed=asks,
        # A driver that reports recovery actions, and reports none, has dealt with the memory errors.
        uncorrected=0 if seen.reset_needed is False else seen.ecc_uncorrected or 0,
        hot=_hot(record, seen.temperature, seen.slowdown_temperature),
        reset_seen=record.reset_seen or asks,
    )
    over = not asks if record.reset_seen else now - record.xid_at >= QUIET_SECONDS
    return replace(record, xid=None, reset_seen=False) if record.xid is not None and over else record


def _hot(record: HealthHistory, temperature: int | None, threshold: int | None) -> int | None:
    if temperature is None or threshold is None:
        return None
    limit = threshold if record.hot is None else threshold - COOLER_DEGREES
    return temperature if temperature >= limit else None


def assess(record: HealthHistory) -> GpuHealth:
    """Decide, and name the gravest cause."""
    if record.lost:
        return GpuHealth(GpuState.UNHEALTHY, record.silence or "lost: the GPU no longer answers")
    if record.xid is not None:
        return GpuHealth(GpuState.UNHEALTHY, describe_xid(record.xid))
    if record.uncorrected:
        return GpuHealth(GpuState.UNHEALTHY, f"{record.uncorrected} uncorrectable memory errors")
    if record.reset_needed:
        return GpuHealth(GpuState.UNHEALTHY, "the driver asks for a reset")
    if record.hot is not None:
        return GpuHealth(GpuState.UNHEALTHY, f"too hot: {record.hot} degrees")
    return GpuHealth(GpuState.OK)


def assess_once(seen: Observation) -> GpuHealth:
    """Decide by one reading alone, without XIDs: only a running agent knows about those."""
    vitals = seen.vitals if isinstance(seen, GpuReading) else seen
    return assess(note_reading(HealthHistory(), vitals, now=0.0))
