"""What NVML reports about a GPU at one moment: pure values. None is what the GPU does not report."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.units import BYTES_PER_MIB, Mib


class ThrottleReason(StrEnum):
    """Why clocks are held down. Idle GPUs and clocks that an admin set are left out."""

    POWER = "power"
    THERMAL = "thermal"
    HARDWARE = "hardware"
    SYNC = "sync"
    RELIABILITY = "reliability"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has the GPU open."""

    gpu: str
    pid: int
    """The PID in the host's namespace."""
    memory: Mib | None = None
    utilization: float | None = None
    """Fraction of the GPU's time over about the last second, 0 to 1."""


@dataclass(frozen=True, slots=True)
class GpuVitals:
    """What a GPU's health depends on; read every second, so it is no more than that."""

    index: int
    uuid: str
    temperature: int | None = None
    slowdown_temperature: int | None = None
    """The temperature at which the GPU reduces its clocks."""
    ecc_uncorrected: int | None = None
    """Since the last reset."""
    reset_needed: bool | None = None
    """The driver says that the GPU, or the machine, must be reset."""
    millijoules: int | None = None
    """Since the driver was loaded."""
    throttled_ns: Mapping[ThrottleReason, int] | None = None
    """Time with reduced clocks by reason, since the driver was loaded; None if the driver does not count it."""
    throttled: frozenset[ThrottleReason] | None = None
    """The reasons now; read only if the driver does not count the time."""


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of memory that spare ones replaced over the GPU's lifetime."""

    corrected: int
    """Because of errors that were corrected."""
    uncorrected: int
    pending: bool
    """A row is replaced with the next reset."""
    failed: bool
    """A row could not be replaced: no spare one is left."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Everything that is monitored of one GPU; read on request."""

    vitals: GpuVitals
    memory_total: Mib
    memory_used: Mib | None
    """None for a GPU that uses the memory of its processor."""
    utilization: int | None = None
    """Percent of the time in which anything ran."""
    memory_utilization: int | None = None
    milliwatts: int | None = None
    milliwatts_limit: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled: frozenset[ThrottleReason] = frozenset()
    pcie_sent_kbps: int | None = None
    pcie_received_kbps: int | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    pcie_replays: int | None = None
    nvlink_sent_kib: int | None = None
    """Over all links, as `nvlink_received_kib`; since the driver was loaded."""
    nvlink_received_kib: int | None = None
    encoder: int | None = None
    """Percent of the time, as `decoder`."""
    decoder: int | None = None
    remapped_rows: "RemappedRows | None" = None
    ecc_corrected: int | None = None
    """Since the last reset."""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def memory_used_bytes(self) -> int | None:
        return None if self.memory_used is None else self.memory_used * BYTES_PER_MIB

    @property
    def index(self) -> int:
        return self.vitals.index

    @property
    def uuid(self) -> str:
        return self.vitals.uuid


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that NVML counts but that does not answer as it should."""

    index: int
    uuid: str
    """Empty when the GPU was lost before it was first read."""
    message: str = ""
    """What is wrong with its answers; empty for a GPU that has fallen off the bus."""
    silent: bool = False
    """A call about it has not returned."""


Observation = GpuReading | LostGpu


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error of this GPU that the driver reported."""

    uuid: str
    xid: int
