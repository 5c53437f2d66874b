"""Reads one GPU through NVML."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from milligpu.model.units import Mib
from milligpu.nvml import field_values as fields
from milligpu.nvml.library import GpuLostError, Handle, Nvml
from milligpu.nvml.readings import GpuProcess, GpuReading, GpuVitals, RemappedRows, ThrottleReason

# NVML's bits for why clocks are held down, without those for an idle GPU and for clocks that an admin set.
_THROTTLES = {
    0x4: ThrottleReason.POWER,
    0x8: ThrottleReason.HARDWARE,
    0x10: ThrottleReason.SYNC,
    0x20: ThrottleReason.THERMAL,
    0x40: ThrottleReason.THERMAL,
    0x80: ThrottleReason.POWER,
    0x400: ThrottleReason.RELIABILITY,
}
_MICROSECONDS = 1_000_000


def read_gpu(nvml: Nvml, index: int, uuid: str, handle: Handle) -> GpuReading:
    """Read everything that is monitored; GpuLostError when the GPU is lost."""
    api = nvml.api
    total, used = read_memory(nvml, handle)
    rates = nvml.try_ask("nvmlDeviceGetUtilizationRates", handle)
    traffic = fields.read_fields(
        nvml.try_ask,
        nvml,
        handle,
        (fields.PCIE_SENT, fields.PCIE_RECEIVED, fields.LINKS_SENT, fields.LINKS_RECEIVED),
    )
    return GpuReading(
        vitals=read_vitals(nvml, index, uuid, handle),
        memory_total=total,
        memory_used=used,
        utilization=rates.gpu if rates else None,
        memory_utilization=rates.memory if rates else None,
        milliwatts=nvml.try_ask("nvmlDeviceGetPowerUsage", handle),
        milliwatts_limit=nvml.try_ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_MEM),
        throttled=_throttled(nvml.try_ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)),
        pcie_sent_kbps=nvml.try_ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_TX_BYTES),
        pcie_received_kbps=nvml.try_ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_RX_BYTES),
        pcie_sent_bytes=traffic.get(fields.PCIE_SENT),
        pcie_received_bytes=traffic.get(fields.PCIE_RECEIVED),
        pcie_replays=nvml.try_ask("nvmlDeviceGetPcieReplayCounter", handle),
        nvlink_sent_kib=traffic.get(fields.LINKS_SENT),
        nvlink_received_kib=traffic.get(fields.LINKS_RECEIVED),
        encoder=_first(nvml.try_ask("nvmlDeviceGetEncoderUtilization", handle)),
        decoder=_first(nvml.try_ask("nvmlDeviceGetDecoderUtilization", handle)),
        remapped_rows=_remapped(nvml.try_ask("nvmlDeviceGetRemappedRows", handle)),
        ecc_corrected=_ecc(nvml.try_ask, nvml, handle, api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        processes=read_processes(nvml, uuid, handle),
    )


def read_memory(nvml: Nvml, handle: Handle) -> tuple[Mib, Mib | None]:
    """Return the memory of a GPU, and how much of it is in use, if that can be told.

    A GPU that uses the memory of its processor (such as NVIDIA's GB10) has none of its own to report. It can use
    all of the machine's, and what is in use of that says nothing about the GPU.
    """
    function = "nvmlDeviceGetMemoryInfo"
    memory = nvml.ask(function, handle)
    if memory is not None:
        return Mib(memory.total >> 20), Mib(memory.used >> 20)
    if nvml.lacks(function, handle):
        return Mib(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20), None
    raise GpuLostError("NVML does not report its memory")


def read_vitals(nvml: Nvml, index: int, uuid: str, handle: Handle) -> GpuVitals:
    """Read what the GPU's health depends on; GpuLostError when the GPU is lost."""
    api = nvml.api
    found = fields.read_fields(
        nvml.ask, nvml, handle, (fields.RECOVERY_ACTION, fields.ENERGY, *fields.THROTTLE_FIELDS)
    )
    slowed = fields.throttled_ns(found)
    recovery = found.get(fields.RECOVERY_ACTION)
    return GpuVitals(
        index=index,
        uuid=uuid,
        temperature=nvml.ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU),
        slowdown_temperature=nvml.ask(
            "nvmlDeviceGetTemperatureThreshold", handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        ecc_uncorrected=_ecc(nvml.ask, nvml, handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        # Newer drivers report the recovery action that a GPU needs after an error; 0 is none.
        reset_needed=None if recovery is None else recovery != 0,
        millijoules=found.get(fields.ENERGY) or nvml.try_ask("nvmlDeviceGetTotalEnergyConsumption", handle),
        throttled_ns=slowed,
        throttled=None if slowed is not None else _reasons(nvml, handle),
    )


def read_processes(nvml: Nvml, uuid: str, handle: Handle) -> tuple[GpuProcess, ...]:
    """List the processes that have the GPU open, with their memory and their part of its time."""
    memory: dict[int, Mib | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in running_processes(nvml, kind, handle):
            used = process.usedGpuMemory
            memory.setdefault(process.pid, None if used is None else Mib(used >> 20))
    busy: dict[int, tuple[int, int]] = {}
    for sample in nvml.try_ask("nvmlDeviceGetProcessUtilization", handle, 0) or ():
        busy[sample.pid] = max(busy.get(sample.pid, (0, 0)), (sample.timeStamp, sample.smUtil))
    newest = max((stamp for stamp, _ in busy.values()), default=0)
    # NVML keeps samples of some seconds; only those of the last one say what a process does now.
    recent = {pid: percent for pid, (stamp, percent) in busy.items() if stamp > newest - _MICROSECONDS}
    return tuple(
        GpuProcess(uuid, pid, size, None if pid not in recent else recent[pid] / 100)
        for pid, size in sorted(memory.items())
    )


def _reasons(nvml: Nvml, handle: Handle) -> frozenset[ThrottleReason] | None:
    bits = nvml.try_ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else _throttled(bits)


def _first(pair: list[int] | None) -> int | None:
    """Of a utilization and its sampling period, the utilization."""
    return None if pair is None else pair[0]


def _remapped(rows: tuple[int, int, int, int] | None) -> RemappedRows | None:
    return None if rows is None else RemappedRows(rows[0], rows[1], bool(rows[2]), bool(rows[3]))


def running_processes(nvml: Nvml, kind: str, handle: Handle) -> Sequence[Any]:
    """Return NVML's list of processes; drivers before 510 have only an older version of the function."""
    function = f"nvmlDeviceGet{kind}RunningProcesses"
    found = nvml.try_ask(function, handle)
    return (nvml.try_ask(f"{function}_v2", handle) if found is None else found) or ()


def _throttled(bits: int | None) -> frozenset[ThrottleReason]:
    return frozenset(reason for bit, reason in _THROTTLES.items() if (bits or 0) & bit)


def _ecc(ask: Callable[..., Any], nvml: Nvml, handle: Handle, kind: int) -> int | None:
    return ask("nvmlDeviceGetTotalEccErrors", handle, kind, nvml.api.NVML_VOLATILE_ECC)
