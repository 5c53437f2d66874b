"""Reads one GPU through NVML."""

from collections.abc import Callable
from typing import Any

from milligpu.model.units import Mib
from milligpu.nvml.library import GpuLostError, Handle, Nvml
from milligpu.nvml.readings import GpuProcess, GpuReading, GpuVitals, ThrottleReason

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
_RECOVERY_FIELD = 230
_MICROSECONDS = 1_000_000


def read_gpu(nvml: Nvml, index: int, uuid: str, handle: Handle) -> GpuReading:
    """Read everything that is monitored; GpuLostError when the GPU is lost."""
    api = nvml.api
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is None:
        raise GpuLostError("NVML does not tell its memory")
    rates = nvml.try_ask("nvmlDeviceGetUtilizationRates", handle)
    return GpuReading(
        vitals=read_vitals(nvml, index, uuid, handle),
        memory_total=Mib(memory.total >> 20),
        memory_used=Mib(memory.used >> 20),
        utilization=rates.gpu if rates else None,
        memory_utilization=rates.memory if rates else None,
        milliwatts=nvml.try_ask("nvmlDeviceGetPowerUsage", handle),
        milliwatts_limit=nvml.try_ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        millijoules=nvml.try_ask("nvmlDeviceGetTotalEnergyConsumption", handle),
        clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.try_ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_MEM),
        throttled=_throttled(nvml.try_ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)),
        pcie_sent_kbps=nvml.try_ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_TX_BYTES),
        pcie_received_kbps=nvml.try_ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_RX_BYTES),
        ecc_corrected=_ecc(nvml.try_ask, nvml, handle, api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        processes=read_processes(nvml, uuid, handle),
    )


def read_vitals(nvml: Nvml, index: int, uuid: str, handle: Handle) -> GpuVitals:
    """Read what the GPU's health depends on; GpuLostError when the GPU is lost."""
    api = nvml.api
    return GpuVitals(
        index=index,
        uuid=uuid,
        temperature=nvml.ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU),
        slowdown_temperature=nvml.ask(
            "nvmlDeviceGetTemperatureThreshold", handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        ecc_uncorrected=_ecc(nvml.ask, nvml, handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        reset_needed=_reset_needed(nvml, handle),
    )


def read_processes(nvml: Nvml, uuid: str, handle: Handle) -> tuple[GpuProcess, ...]:
    """List the processes that have the GPU open, with their memory and their part of its time."""
    memory: dict[int, Mib | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in nvml.try_ask(f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
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


def _throttled(bits: int | None) -> frozenset[ThrottleReason]:
    return frozenset(reason for bit, reason in _THROTTLES.items() if (bits or 0) & bit)


def _ecc(ask: Callable[..., Any], nvml: Nvml, handle: Handle, kind: int) -> int | None:
    return ask("nvmlDeviceGetTotalEccErrors", handle, kind, nvml.api.NVML_VOLATILE_ECC)


def _reset_needed(nvml: Nvml, handle: Handle) -> bool | None:
    """Newer drivers report the recovery action that a GPU needs after an error; 0 is none."""
    values = nvml.ask("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if not values or values[0].nvmlReturn != nvml.api.NVML_SUCCESS:
        return None
    return values[0].value.uiVal != 0
