"""How one card stands, asked of NVML."""

from milligpu.devices.nvml import Handle, Nvml
from milligpu.devices.reading import Process, Reading, Throttle, Vitals
from milligpu.model.units import Mib

# NVML's bits for why clocks are held down; those for idleness and for clocks that somebody set are left out.
_THROTTLES = {
    0x4: Throttle.POWER,
    0x8: Throttle.HARDWARE,
    0x10: Throttle.SYNC,
    0x20: Throttle.THERMAL,
    0x40: Throttle.THERMAL,
    0x80: Throttle.POWER,
    0x400: Throttle.RELIABILITY,
}
_RECOVERY_FIELD = 230
_MICROSECONDS = 1_000_000


def read_card(nvml: Nvml, index: int, uuid: str, handle: Handle) -> Reading:
    """Everything that is watched; GpuLost when the card is gone."""
    api = nvml.api
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    return Reading(
        index=index,
        uuid=uuid,
        memory_total=Mib(memory.total >> 20),
        memory_used=Mib(memory.used >> 20),
        utilisation=rates.gpu if rates else None,
        memory_utilisation=rates.memory if rates else None,
        temperature=nvml.ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU),
        slowdown_temperature=nvml.ask(
            "nvmlDeviceGetTemperatureThreshold", handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        milliwatts=nvml.ask("nvmlDeviceGetPowerUsage", handle),
        milliwatts_limit=nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        millijoules=nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle),
        clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_SM),
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_MEM),
        throttled=_throttled(nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)),
        pcie_sent_kbps=nvml.ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_TX_BYTES),
        pcie_received_kbps=nvml.ask("nvmlDeviceGetPcieThroughput", handle, api.NVML_PCIE_UTIL_RX_BYTES),
        ecc_corrected=_ecc(nvml, handle, api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(nvml, handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        reset_needed=_reset_needed(nvml, handle),
        processes=read_processes(nvml, handle),
    )


def read_vitals(nvml: Nvml, index: int, uuid: str, handle: Handle) -> Vitals:
    """What its health depends on; GpuLost when the card is gone."""
    api = nvml.api
    return Vitals(
        index=index,
        uuid=uuid,
        temperature=nvml.ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU),
        slowdown_temperature=nvml.ask(
            "nvmlDeviceGetTemperatureThreshold", handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        ecc_uncorrected=_ecc(nvml, handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        reset_needed=_reset_needed(nvml, handle),
    )


def read_processes(nvml: Nvml, handle: Handle) -> tuple[Process, ...]:
    """Who has the card open, with memory and time."""
    memory: dict[int, Mib | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
            used = process.usedGpuMemory
            memory.setdefault(process.pid, None if used is None else Mib(used >> 20))
    busy: dict[int, tuple[int, int]] = {}
    for sample in nvml.ask("nvmlDeviceGetProcessUtilization", handle, 0) or ():
        busy[sample.pid] = max(busy.get(sample.pid, (0, 0)), (sample.timeStamp, sample.smUtil))
    newest = max((stamp for stamp, _ in busy.values()), default=0)
    # NVML remembers some seconds; what a process did then is not what it does.
    fresh = {pid: part for pid, (stamp, part) in busy.items() if stamp > newest - _MICROSECONDS}
    return tuple(Process(pid, size, fresh.get(pid)) for pid, size in sorted(memory.items()))


def _throttled(bits: int | None) -> frozenset[Throttle]:
    return frozenset(reason for bit, reason in _THROTTLES.items() if (bits or 0) & bit)


def _ecc(nvml: Nvml, handle: Handle, kind: int) -> int | None:
    return nvml.ask("nvmlDeviceGetTotalEccErrors", handle, kind, nvml.api.NVML_VOLATILE_ECC)


def _reset_needed(nvml: Nvml, handle: Handle) -> bool | None:
    """Newer drivers say what must be done to a card after an error; 0 is nothing."""
    values = nvml.ask("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if not values or values[0].nvmlReturn != nvml.api.NVML_SUCCESS:
        return None
    return values[0].value.uiVal != 0
