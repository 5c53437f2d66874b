"""How a card stands at one moment. Pure values."""

from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.units import Mib


class Throttle(StrEnum):
    """Why clocks are below their highest; idleness and set clocks are no reason to worry and left out."""

    POWER = "power"
    THERMAL = "thermal"
    HARDWARE = "hardware"
    SYNC = "sync"
    RELIABILITY = "reliability"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has the card open, by its pid on the host."""

    pid: int
    memory: Mib | None
    utilisation: int | None
    """Percent of the card's time, over about the last second."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a card's health depends on, and no more: it is asked every second. What it does not tell is None."""

    index: int
    uuid: str
    temperature: int | None = None
    slowdown_temperature: int | None = None
    """Where the card begins to hold its clocks down."""
    ecc_uncorrected: int | None = None
    """Since the last reset."""
    reset_needed: bool | None = None
    """The driver itself says that the card must be reset, or the machine."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One card. Whatever it does not tell is None."""

    index: int
    uuid: str
    memory_total: Mib
    memory_used: Mib
    utilisation: int | None = None
    """Percent of the time in which anything ran."""
    memory_utilisation: int | None = None
    temperature: int | None = None
    slowdown_temperature: int | None = None
    """Where the card begins to hold its clocks down."""
    milliwatts: int | None = None
    milliwatts_limit: int | None = None
    millijoules: int | None = None
    """Since the driver was loaded."""
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled: frozenset[Throttle] = frozenset()
    pcie_sent_kbps: int | None = None
    pcie_received_kbps: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the last reset."""
    reset_needed: bool | None = None
    """The driver itself says that the card must be reset, or the machine."""
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """A card that NVML counts, but that no longer answers."""

    index: int
    uuid: str
    """Empty when it was lost before anybody asked."""


Observation = Reading | Lost


@dataclass(frozen=True, slots=True)
class XidEvent:
    """The driver reported an error of this card."""

    uuid: str
    xid: int
