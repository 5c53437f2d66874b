"""Reading `GpuLayout` and `GpuCalendar` objects: into values, or refused with field, value and what is allowed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

from milligpu.layouts.calendar import (
    CalendarException,
    CalendarWindow,
    LayoutCalendar,
    parse_days,
    refuse_overlaps,
)
from milligpu.layouts.layout import CardGroup, CardLayout, MachineRule, PodTreatment
from milligpu.layouts.local_time import DAY_MINUTES, parse_date, parse_time, parse_zone
from milligpu.model.card_rules import CardRule
from milligpu.model.errors import BadRequest
from milligpu.model.machines import MachineState, parse_machine_profile
from milligpu.model.policy import parse_policy
from milligpu.model.requirements import ANY, parse_requirements
from milligpu.model.units import WHOLE, Milli, parse_whole
from milligpu.wire.fields import Json, read_flag, read_mapping, refuse_unknown

NAME_MAX = 63
# What a person can oversee; each is evaluated for every day of a year when zones differ.
WINDOWS_MAX, EXCEPTIONS_MAX, CARDS_MAX, MACHINES_MAX, DATES_MAX = 64, 128, 64, 128, 366
MACHINE_NAME_MAX = 80
"""What vSphere allows."""
DEADLINE_S = 30 * 60
_DEADLINE_MIN_S, _DEADLINE_MAX_S = 10, 24 * 3600

_CALENDAR_FIELDS = (
    *("zone", "default", "nodeSelector", "windows", "exceptions"),
    *("paused", "override", "onFailure", "deadlineSeconds"),
)

_Choice = TypeVar("_Choice", bound=StrEnum)


class OnFailure(StrEnum):
    """What happens to a switch that fails, or takes longer than its deadline."""

    ROLLBACK = "rollback"
    """All steps are undone, and the layout before holds until the next switch."""
    HOLD = "hold"
    """Everything stays as it is until somebody looks."""


@dataclass(frozen=True, slots=True)
class LayoutOverride:
    """A person's choice, which goes before the calendar until its time is over."""

    layout: str
    until: datetime | None = None
    """In UTC; None is until it is removed."""


@dataclass(frozen=True, slots=True)
class CalendarSpec:
    """What a `GpuCalendar` says."""

    name: str
    calendar: LayoutCalendar
    nodes: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """The calendar is for nodes with these labels."""
    paused: bool = False
    override: LayoutOverride | None = None
    on_failure: OnFailure = OnFailure.ROLLBACK
    deadline: timedelta = timedelta(seconds=DEADLINE_S)

    def wanted(self, now: datetime, present: str) -> str:
        """Return the layout that should hold now; a paused calendar keeps the present one."""
        override = self.override
        if override is not None and (override.until is None or now < override.until):
            return override.layout
        if self.paused and present:
            return present
        return self.calendar.layout_at(now)


def parse_calendar(found: Json, start: datetime) -> CalendarSpec:
    """Read a `GpuCalendar`; `start` is from when windows of several zones are compared."""
    name = _name("metadata.name", read_mapping("metadata", found.get("metadata")).get("name"))
    spec = read_mapping("spec", found.get("spec"))
    refuse_unknown("spec", spec, *_CALENDAR_FIELDS)
    zone = parse_zone("spec.zone", spec.get("zone", "UTC"))
    windows = _list("spec.windows", spec.get("windows"), WINDOWS_MAX)
    exceptions = _list("spec.exceptions", spec.get("exceptions"), EXCEPTIONS_MAX)
    calendar = LayoutCalendar(
        zone,
        _name("spec.default", spec.get("default")),
        tuple(_window(f"spec.windows[{number}]", each, zone) for number, each in enumerate(windows)),
        tuple(_exception(f"spec.exceptions[{number}]", each, zone) for number, each in enumerate(exceptions)),
    )
    refuse_overlaps(calendar, start)
    seconds = parse_whole(
        "spec.deadlineSeconds", spec.get("deadlineSeconds", DEADLINE_S), _DEADLINE_MIN_S, _DEADLINE_MAX_S
    )
    return CalendarSpec(
        name,
        calendar,
        _labels("spec.nodeSelector", spec.get("nodeSelector")),
        read_flag("spec.paused", spec.get("paused", False)),
        _override(spec.get("override")),
        _choice("spec.onFailure", spec.get("onFailure", OnFailure.ROLLBACK), OnFailure),
        timedelta(seconds=seconds),
    )


def parse_layout(found: Json) -> CardLayout:
    """Read a `GpuLayout`."""
    name = _name("metadata.name", read_mapping("metadata", found.get("metadata")).get("name"))
    spec = read_mapping("spec", found.get("spec"))
    refuse_unknown("spec", spec, "cards", "machines")
    cards = _list("spec.cards", spec.get("cards"), CARDS_MAX)
    found_machines = _list("spec.machines", spec.get("machines"), MACHINES_MAX)
    machines = tuple(_machine(f"spec.machines[{number}]", each) for number, each in enumerate(found_machines))
    _refuse_twice(machines)
    groups = tuple(_cards(f"spec.cards[{number}]", each) for number, each in enumerate(cards))
    return CardLayout(name, groups, machines)


def _machine(where: str, value: object) -> MachineRule:
    found = read_mapping(where, value)
    refuse_unknown(where, found, "name", "node", "state", "profile", "pods")
    name = found.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MACHINE_NAME_MAX or not name.isprintable():
        raise BadRequest(f"{where}.name", name, f"the name of a VM: at most {MACHINE_NAME_MAX} characters")
    profile = found.get("profile")
    rule = MachineRule(
        name,
        _object_name(f"{where}.node", found.get("node", name), "a node"),
        _choice(f"{where}.state", found.get("state"), MachineState),
        "" if profile is None else parse_machine_profile(f"{where}.profile", profile),
        _choice(f"{where}.pods", found.get("pods", PodTreatment.KEEP), PodTreatment),
    )
    if rule.state is MachineState.OFF and rule.pods is PodTreatment.KEEP:
        raise BadRequest(f"{where}.pods", found.get("pods"), "drain: a VM that is off keeps no pods")
    return rule


def _refuse_twice(machines: tuple[MachineRule, ...]) -> None:
    for key in ("name", "node"):
        first: dict[str, int] = {}
        for number, each in enumerate(machines):
            value = str(getattr(each, key))
            if value in first:
                want = f"another one than in spec.machines[{first[value]}]"
                raise BadRequest(f"spec.machines[{number}].{key}", value, want)
            first[value] = number


def _cards(where: str, value: object) -> CardGroup:
    found = read_mapping(where, value)
    refuse_unknown(where, found, "nodeSelector", "gpus", "policy", "reserved", "limit")
    gpus, policy, reserved, limit = (found.get(key) for key in ("gpus", "policy", "reserved", "limit"))
    if policy is None and reserved is None and limit is None:
        raise BadRequest(where, dict(found), "one of policy, reserved and limit at least")
    rule = CardRule(
        ANY if gpus is None else parse_requirements(f"{where}.gpus", gpus),
        None if policy is None else parse_policy(f"{where}.policy", policy),
        None if reserved is None else Milli(parse_whole(f"{where}.reserved", reserved, 0, WHOLE)),
        None if limit is None else Milli(parse_whole(f"{where}.limit", limit, 1, WHOLE)),
    )
    return CardGroup(_labels(f"{where}.nodeSelector", found.get("nodeSelector")), rule)


def _window(where: str, value: object, zone: ZoneInfo) -> CalendarWindow:
    found = read_mapping(where, value)
    refuse_unknown(where, found, "days", "from", "to", "zone", "layout")
    begin, end = _times(where, found)
    return CalendarWindow(
        parse_days(f"{where}.days", found.get("days")),
        begin,
        end,
        parse_zone(f"{where}.zone", found["zone"]) if "zone" in found else zone,
        _name(f"{where}.layout", found.get("layout")),
    )


def _exception(where: str, value: object, zone: ZoneInfo) -> CalendarException:
    found = read_mapping(where, value)
    refuse_unknown(where, found, "dates", "from", "to", "layout", "name")
    dates = _list(f"{where}.dates", found.get("dates"), DATES_MAX)
    if not dates:
        raise BadRequest(f"{where}.dates", None, "a list of dates such as 2026-12-24")
    begin, end = _times(where, {"from": "00:00", "to": "24:00", **found})
    return CalendarException(
        tuple(sorted({parse_date(f"{where}.dates[{number}]", each) for number, each in enumerate(dates)})),
        begin,
        end,
        zone,
        _name(f"{where}.layout", found.get("layout")),
        str(found.get("name", "")),
    )


def _times(where: str, found: Json) -> tuple[int, int]:
    begin = parse_time(f"{where}.from", found.get("from"))
    end = parse_time(f"{where}.to", found.get("to"), end=True)
    if begin == end:
        raise BadRequest(f"{where}.to", found.get("to"), "another time than from; whole days are 00:00 to 24:00")
    return begin, end if end > begin else end + DAY_MINUTES


def _override(value: object) -> LayoutOverride | None:
    if value is None:
        return None
    found = read_mapping("spec.override", value)
    refuse_unknown("spec.override", found, "layout", "until")
    until = found.get("until")
    return LayoutOverride(
        _name("spec.override.layout", found.get("layout")),
        None if until is None else parse_instant("spec.override.until", until),
    )


def parse_instant(field_: str, value: object) -> datetime:
    """Read an instant with its offset, as Kubernetes writes times."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadRequest(field_, value, "a time with its offset, such as 2026-12-24T18:00:00Z")
    return found.astimezone(UTC)


def _choice(field_: str, value: object, choices: type[_Choice]) -> _Choice:
    try:
        return choices(str(value))
    except ValueError:
        raise BadRequest(field_, value, " or ".join(choices)) from None


# -- shapes --------------------------------------------------------------------------------------------------


def _list(field_: str, value: object, most: int) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(field_, value, "a list")
    items = cast("list[Any]", value)
    if len(items) > most:
        raise BadRequest(field_, f"{len(items)} entries", f"at most {most} entries")
    return items


def _labels(field_: str, value: object) -> Mapping[str, str]:
    found = read_mapping(field_, value)
    for key, each in found.items():
        if not isinstance(each, str):
            raise BadRequest(f"{field_}.{key}", each, "a text, as the value of a label is")
    return dict(found)


def _name(field_: str, value: object) -> str:
    return _object_name(field_, value, "" if field_ == "metadata.name" else "a GpuLayout")


def _object_name(field_: str, value: object, kind: str) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-."
    if not isinstance(value, str) or not 0 < len(value) <= NAME_MAX or not all(each in letters for each in value):
        of = f" of {kind}" if kind else ""
        want = f"the name{of}: at most {NAME_MAX} lower-case letters, digits, '-' and '.'"
        raise BadRequest(field_, value, want)
    return value
