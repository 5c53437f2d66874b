"""What the agent measured, as the samples from which metrics are made. Pure; unknown values are left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from milligpu.metrics.node import GpuSample, ShareSample
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.nvml.readings import GpuReading
from milligpu.nvml.throttle_times import ThrottleTime
from milligpu.tenancy.energy import GpuAccount
from milligpu.wire.status import ShareUsage

_NS = 1e9
_KIB = 1024
_MILLI = 1000
_PERCENT = 100
_PER_MEGA = 1e-6

_Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """All that is known of one GPU."""

    index: int
    gpu: Gpu
    node: str
    reading: GpuReading | None
    xids: int
    throttled: ThrottleTime | None
    account: GpuAccount | None


def gpu_sample(measured: MeasuredGpu, usages: Sequence[ShareUsage]) -> GpuSample:
    """Make the sample of a GPU; `usages` are the shares on it."""
    gpu, reading, throttled = measured.gpu, measured.reading, measured.throttled
    gauges, counters = _allocation(gpu, usages), {"xid_errors": measured.xids} | _account(gpu, measured.account)
    if reading is not None:
        gauges |= _gauges(reading)
        counters |= _counters(reading)
    return GpuSample(
        measured.index,
        gpu.uuid,
        gpu.model,
        measured.node,
        gpu.state is GpuState.OK,
        {f"milligpu_gpu_{name}": value for name, value in gauges.items()},
        {f"milligpu_gpu_{name}": value for name, value in counters.items()},
        frozenset(map(str, reading.throttled)) if reading else frozenset(),
        throttle_source="" if throttled is None else str(throttled.source),
        throttled_seconds={}
        if throttled is None
        else {str(reason): seconds for reason, seconds in throttled.seconds.items()},
    )


def _allocation(gpu: Gpu, usages: Sequence[ShareUsage]) -> _Numbers:
    return {
        "capacity_ratio": gpu.milli / WHOLE,
        "unallocated_ratio": max(0, gpu.milli - sum(use.milli for use in usages)) / WHOLE,
        "memory_total_bytes": gpu.mib * BYTES_PER_MIB,
        "unallocated_memory_bytes": max(0, gpu.mib - sum(use.mib for use in usages)) * BYTES_PER_MIB,
    }


def _account(gpu: Gpu, account: GpuAccount | None) -> _Numbers:
    if account is None:
        return {}
    cards = gpu.milli / WHOLE
    return {
        "shared_seconds": account.shared_s * cards,
        "idle_seconds": account.idle_s * cards,
        "energy_joules": account.energy_j,
        "unallocated_energy_joules": None if account.energy_j is None else account.unallocated_j,
    }


def _gauges(reading: GpuReading) -> _Numbers:
    rows = reading.remapped_rows
    return {
        "utilization_ratio": scaled(reading.utilization, _PERCENT),
        "memory_utilization_ratio": scaled(reading.memory_utilization, _PERCENT),
        "encoder_utilization_ratio": scaled(reading.encoder, _PERCENT),
        "decoder_utilization_ratio": scaled(reading.decoder, _PERCENT),
        "memory_used_bytes": reading.memory_used_bytes,
        "temperature_celsius": reading.vitals.temperature,
        "slowdown_temperature_celsius": reading.vitals.slowdown_temperature,
        "power_watts": scaled(reading.milliwatts, _MILLI),
        "power_limit_watts": scaled(reading.milliwatts_limit, _MILLI),
        "clock_hertz": scaled(reading.clock_mhz, _PER_MEGA),
        "memory_clock_hertz": scaled(reading.memory_clock_mhz, _PER_MEGA),
        "pcie_sent_bytes_per_second": scaled(reading.pcie_sent_kbps, 1 / _MILLI),
        "pcie_received_bytes_per_second": scaled(reading.pcie_received_kbps, 1 / _MILLI),
        "remapped_rows_pending": None if rows is None else float(rows.pending),
        "remapped_rows_failed": None if rows is None else float(rows.failed),
    }


def _counters(reading: GpuReading) -> _Numbers:
    rows = reading.remapped_rows
    return {
        "ecc_corrected": reading.ecc_corrected,
        "ecc_uncorrected": reading.vitals.ecc_uncorrected,
        "remapped_rows_corrected": None if rows is None else rows.corrected,
        "remapped_rows_uncorrected": None if rows is None else rows.uncorrected,
        "pcie_sent_bytes": reading.pcie_sent_bytes,
        "pcie_received_bytes": reading.pcie_received_bytes,
        "pcie_replays": reading.pcie_replays,
        "nvlink_sent_bytes": scaled(reading.nvlink_sent_kib, 1 / _KIB),
        "nvlink_received_bytes": scaled(reading.nvlink_received_kib, 1 / _KIB),
    }


def share_sample(use: ShareUsage, sample: GpuSample, gpu: Gpu) -> ShareSample:
    """Make the sample of a container or session on one GPU."""
    gauges: _Numbers = {
        "share_ratio": use.milli / WHOLE,
        "limit_ratio": use.limit / WHOLE,
        "memory_limit_bytes": use.memory_limit,
        "memory_used_bytes": use.memory_used,
        "memory_peak_bytes": use.memory_peak,
        "power_watts": use.power,
        "on_unhealthy_gpu": float(gpu.state is GpuState.UNHEALTHY),
    }
    counters: _Numbers = {
        "gpu_seconds": scaled(use.gpu_time_ns, _NS),
        "waiting_seconds": scaled(use.waiting_ns, _NS),
        "throttled_seconds": scaled(use.throttled_ns, _NS),
        "energy_joules": use.energy,
        "out_of_memory": use.refusals,
    }
    owner = (use.session,) if use.session else (use.namespace, use.pod, use.container)
    return ShareSample(sample, owner, gauges, counters)


def scaled(value: float | None, by: float) -> float | None:
    """Divide a number that may be unknown."""
    return None if value is None else value / by
