"""Faults on request: what can befall a card, and what management tools then see of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_whole
from milligpu.model.xid import APPLICATION_XIDS

# Numbers in NVIDIA's list end far below; NVML says 999 for one that it does not know.
XID_MAX = 999
ECC_MAX = 1_000_000
# Beyond this no sensor reads.
CELSIUS_MAX = 127

XID_ECC, XID_LOST = 48, 79
# The kinds of event that NVML tells apart, as it numbers them.
EVENT_LOOK, EVENT_ECC, EVENT_XID = 0, 2, 8


class Throttle(StrEnum):
    """Why clocks are held down, as a person says it."""

    POWER = "power"
    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"


IDLE = 0x1
REASONS = {Throttle.POWER: 0x4, Throttle.THERMAL: 0x8 | 0x20 | 0x40, Throttle.POWER_BRAKE: 0x8 | 0x80}
"""NVML's bits: software power cap; hardware slowdown with its thermal or power-brake reason, software thermal."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do to a card; several at once are possible, and `clear` comes first."""

    clear: bool = False
    xid: int | None = None
    ecc: int | None = None
    temperature: int | None = None
    throttle: Throttle | None = None
    lost: bool = False


def parse_fault(raw: Mapping[str, object]) -> Fault:
    """Read a request, from the command line or from the control socket."""
    unknown = raw.keys() - Fault.__dataclass_fields__.keys()
    if unknown:
        raise BadRequest("fault", sorted(unknown), "one of " + ", ".join(Fault.__dataclass_fields__))
    fault = Fault(
        clear=raw.get("clear") is True,
        xid=_whole("xid", raw.get("xid"), 1, XID_MAX),
        ecc=_whole("ecc", raw.get("ecc"), 1, ECC_MAX),
        temperature=_whole("temperature", raw.get("temperature"), 0, CELSIUS_MAX),
        throttle=_throttle(raw.get("throttle")),
        lost=raw.get("lost") is True,
    )
    if fault == Fault():
        raise BadRequest("fault", "nothing", "at least one of " + ", ".join(Fault.__dataclass_fields__))
    return fault


def _whole(name: str, value: object, low: int, high: int) -> int | None:
    return None if value is None else parse_whole(name, value, low, high)


def _throttle(value: object) -> Throttle | None:
    if value is None:
        return None
    try:
        return Throttle(str(value))
    except ValueError:
        raise BadRequest("throttle", value, "one of " + ", ".join(Throttle)) from None


@dataclass(slots=True)
class Condition:
    """What has befallen one card so far."""

    temperature: int | None = None
    throttle: Throttle | None = None
    lost: bool = False
    reset_needed: bool = False
    """After an error that is the card's own; NVML has a field for it."""
    ecc_volatile: list[int] = field(default_factory=lambda: [0, 0])
    """Corrected and uncorrected, since the last reset."""
    ecc_aggregate: list[int] = field(default_factory=lambda: [0, 0])
    """And in all its life."""

    def apply(self, fault: Fault) -> list[tuple[int, int]]:
        """Change, and say which events that raises: their kinds and data."""
        events: list[tuple[int, int]] = []
        if fault.clear:
            events += [(EVENT_LOOK, 0)] if self.lost else []
            self.temperature, self.throttle, self.ecc_volatile = None, None, [0, 0]
            self.lost = self.reset_needed = False
        if fault.temperature is not None:
            self.temperature = fault.temperature
        if fault.throttle is not None:
            self.throttle = fault.throttle
        if fault.ecc is not None:
            self.ecc_volatile[1] += fault.ecc
            self.ecc_aggregate[1] += fault.ecc
            events += [(EVENT_ECC, 0), (EVENT_XID, XID_ECC)]
        if fault.xid is not None:
            events.append((EVENT_XID, fault.xid))
        if fault.lost:
            self.lost = True
            events += [(EVENT_XID, XID_LOST), (EVENT_LOOK, 0)]
        if any(kind == EVENT_XID and data not in APPLICATION_XIDS for kind, data in events):
            self.reset_needed = True
        return events
