"""`GpuLayout` and `GpuCalendar` objects in the leader: what they say, and their status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from milligpu.kube.api import JSON_PATCH, MERGE_PATCH, ApiClient, ApiRefused
from milligpu.layouts.calendar import SHOWN_SWITCHES
from milligpu.layouts.decide import CalendarCondition, CalendarState
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.spec import CalendarSpec, parse_calendar, parse_layout
from milligpu.layouts.status import CalendarStatus, decode_status, state_of, status_of
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.reasons import LayoutReason
from milligpu.wire.kubernetes import KubeCondition, RawObject

READY = "Ready"
# Gone, or changed by somebody else meanwhile: a failed test of a JSON Patch is 422.
_LATER = frozenset({404, 409, 422})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundCalendar:
    """A calendar object, with what could be read of it."""

    object: RawObject
    spec: CalendarSpec | None
    problem: str
    """Why the spec cannot be read."""
    state: CalendarState


def read_calendar(found: RawObject, now: datetime) -> FoundCalendar:
    """Read a calendar object."""
    text = {"metadata": {"name": found.metadata.name}, "spec": msgspec.json.decode(found.spec)}
    state = state_of(known_status(found))
    try:
        return FoundCalendar(found, parse_calendar(text, now), "", state)
    except BadRequest as error:
        return FoundCalendar(found, None, error.message, state)


def read_layouts(objects: Iterable[RawObject]) -> tuple[dict[str, CardLayout], dict[str, str]]:
    """Return the layouts by name, and what is wrong with those that cannot be read."""
    layouts: dict[str, CardLayout] = {}
    problems: dict[str, str] = {}
    for each in objects:
        name = each.metadata.name
        try:
            layouts[name] = parse_layout({"metadata": {"name": name}, "spec": msgspec.json.decode(each.spec)})
        except BadRequest as error:
            problems[name] = error.message
    return layouts, problems


def known_status(found: RawObject) -> CalendarStatus:
    """Return the status of a calendar; one that cannot be read is none."""
    try:
        return decode_status(bytes(found.status))
    except BadFormat as error:
        log.warning("Could not read status", calendar=found.metadata.name, error=error.message)
        return CalendarStatus()


@dataclass(frozen=True, slots=True)
class DecidedCalendar:
    """What the status of a calendar should say."""

    spec: CalendarSpec | None
    state: CalendarState
    condition: CalendarCondition


@dataclass(frozen=True, slots=True)
class LayoutCondition:
    """The condition `Ready` of a layout."""

    reason: LayoutReason
    message: str = ""

    @property
    def ready(self) -> bool:
        return self.reason is LayoutReason.USABLE


def ready_condition(
    known: Iterable[KubeCondition],
    wanted: CalendarCondition | LayoutCondition,
    found: RawObject,
    now: datetime,
) -> KubeCondition:
    """Return the condition `Ready` as the object should have it; its time changes only with its status."""
    before = next((each for each in known if each.type == READY), KubeCondition(READY, ""))
    status = str(wanted.ready)
    since = before.lastTransitionTime if before.status == status else f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return KubeCondition(READY, status, wanted.reason, wanted.message, since, found.metadata.generation)


async def write_calendar(
    api: ApiClient, found: RawObject, decided: DecidedCalendar, now: datetime
) -> RawObject | None:
    """Write the status if it differs, and return the object with it; None if it is another object by now.

    The version keeps a former leader, and a decision about another spec, from writing.
    """
    known, spec = known_status(found), decided.spec
    upcoming = () if spec is None else spec.calendar.next_switches(now, SHOWN_SWITCHES)
    ready = ready_condition(known.conditions, decided.condition, found, now)
    wanted = msgspec.structs.replace(status_of(decided.state, upcoming), conditions=[ready])
    if known == wanted:
        return found
    meta = found.metadata
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resourceVersion},
        {"op": "add", "path": "/status", "value": wanted},
    ]
    try:
        answer = await api.send("PATCH", f"{names.CALENDARS_PATH}/{meta.name}/status", patch, kind=JSON_PATCH)
    except ApiRefused as error:
        if error.status not in _LATER:
            raise
        log.info("Calendar was changed meanwhile", calendar=meta.name, error=error.message)
        return None
    return msgspec.json.decode(answer, type=RawObject)


class _Conditions(msgspec.Struct):
    conditions: list[KubeCondition] = []


async def write_layout_conditions(
    api: ApiClient, objects: Iterable[RawObject], problems: Mapping[str, str], now: datetime
) -> None:
    """Say on each layout whether it can be read."""
    for each in objects:
        problem = problems.get(each.metadata.name, "")
        wanted = LayoutCondition(LayoutReason.INVALID if problem else LayoutReason.USABLE, problem)
        known = msgspec.json.decode(each.status, type=_Conditions).conditions
        ready = ready_condition(known, wanted, each, now)
        if ready in known:
            continue
        patch = {"metadata": {"uid": each.metadata.uid}, "status": {"conditions": [ready]}}
        try:
            path = f"{names.LAYOUTS_PATH}/{each.metadata.name}/status"
            await api.send("PATCH", path, patch, kind=MERGE_PATCH)
        except ApiRefused as error:
            if error.status not in _LATER:
                raise
