"""Fault injection: the faults that a GPU can have, and what NVML then shows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_whole
from milligpu.model.xid import APPLICATION_XIDS

# NVIDIA's list ends far below this; NVML reports 999 for an unknown error.
XID_MAX = 999
ECC_MAX = 1_000_000
# The highest temperature that the sensors can report.
CELSIUS_MAX = 127
REPLAYS_MAX = 1_000_000
PERCENT_MAX = 100

XID_ECC, XID_LOST = 48, 79
# NVML's numbers for kinds of events; 0 is ours: clients check whether the GPU is lost.
EVENT_CHECK, EVENT_ECC, EVENT_XID = 0, 2, 8


class InjectedThrottle(StrEnum):
    """Why clocks are reduced, in the words of `milligpu softgpu fault --throttle`."""

    POWER = "power"
    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"


IDLE = 0x1
REASONS = {
    InjectedThrottle.POWER: 0x4,
    InjectedThrottle.THERMAL: 0x8 | 0x20 | 0x40,
    InjectedThrottle.POWER_BRAKE: 0x8 | 0x80,
}
"""NVML's bits: software power cap; hardware slowdown with its thermal or power-brake reason, software thermal."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The faults to inject into one GPU; several may be combined, and `clear` is applied first."""

    clear: bool = False
    xid: int | None = None
    ecc: int | None = None
    temperature: int | None = None
    throttle: InjectedThrottle | None = None
    replays: int | None = None
    encoder: int | None = None
    decoder: int | None = None
    lost: bool = False


def parse_fault(raw: Mapping[str, object]) -> Fault:
    """Parse a request from the command line or the control socket."""
    unknown = raw.keys() - Fault.__dataclass_fields__.keys()
    if unknown:
        raise BadRequest("fault", sorted(unknown), "one of " + ", ".join(Fault.__dataclass_fields__))
    fault = Fault(
        clear=raw.get("clear") is True,
        xid=_whole("xid", raw.get("xid"), 1, XID_MAX),
        ecc=_whole("ecc", raw.get("ecc"), 1, ECC_MAX),
        temperature=_whole("temperature", raw.get("temperature"), 0, CELSIUS_MAX),
        throttle=_throttle(raw.get("throttle")),
        replays=_whole("replays", raw.get("replays"), 1, REPLAYS_MAX),
        encoder=_whole("encoder", raw.get("encoder"), 0, PERCENT_MAX),
        decoder=_whole("decoder", raw.get("decoder"), 0, PERCENT_MAX),
        lost=raw.get("lost") is True,
    )
    if fault == Fault():
        raise BadRequest("fault", None, "at least one of " + ", ".join(Fault.__dataclass_fields__))
    return fault


def _whole(name: str, value: object, low: int, high: int) -> int | None:
    return None if value is None else parse_whole(name, value, low, high)


def _throttle(value: object) -> InjectedThrottle | None:
    if value is None:
        return None
    try:
        return InjectedThrottle(str(value))
    except ValueError:
        raise BadRequest("throttle", value, "one of " + ", ".join(InjectedThrottle)) from None


@dataclass(slots=True)
class FaultState:
    """The faults that one GPU has now."""

    temperature: int | None = None
    throttle: InjectedThrottle | None = None
    replays: int = 0
    """Packets that the PCIe link sent again, since the driver was loaded."""
    encoder: int = 0
    decoder: int = 0
    """Percent of the time in which the video engines work; no CUDA program uses them here."""
    lost: bool = False
    reset_needed: bool = False
    """Set by an error of the GPU itself, not of an application; NVML has a field for it."""
    ecc_volatile: list[int] = field(default_factory=lambda: [0, 0])
    """Corrected and uncorrected errors since the last reset."""
    ecc_aggregate: list[int] = field(default_factory=lambda: [0, 0])
    """Corrected and uncorrected errors over the GPU's lifetime."""

    def apply(self, fault: Fault) -> list[tuple[int, int]]:
        """Apply a fault and return the events that it raises, as pairs of kind and data."""
        events: list[tuple[int, int]] = []
        if fault.clear:
            events += [(EVENT_CHECK, 0)] if self.lost else []
            self.temperature, self.throttle, self.ecc_volatile = None, None, [0, 0]
            self.encoder = self.decoder = 0
            self.lost = self.reset_needed = False
        if fault.temperature is not None:
            self.temperature = fault.temperature
        if fault.throttle is not None:
            self.throttle = fault.throttle
        self.replays += fault.replays or 0
        self.encoder = self.encoder if fault.encoder is None else fault.encoder
        self.decoder = self.decoder if fault.decoder is None else fault.decoder
        if fault.ecc is not None:
            self.ecc_volatile[1] += fault.ecc
            self.ecc_aggregate[1] += fault.ecc
            events += [(EVENT_ECC, 0), (EVENT_XID, XID_ECC)]
        if fault.xid is not None:
            events.append((EVENT_XID, fault.xid))
        if fault.lost:
            self.lost = True
            events += [(EVENT_XID, XID_LOST), (EVENT_CHECK, 0)]
        if any(kind == EVENT_XID and data not in APPLICATION_XIDS for kind, data in events):
            self.reset_needed = True
        return events
