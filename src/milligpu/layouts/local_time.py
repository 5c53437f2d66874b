"""Local times as instants: every date and minute of a time zone has exactly one, also when clocks change.

A time that clocks skip is the moment at which they jump. A time that comes twice is the first of the two. So a
later local time is never an earlier instant, and windows that do not overlap on paper do not overlap in time.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from milligpu.model.errors import BadRequest

DAY_MINUTES = 24 * 60
_ZONE_WANT = "a name of the IANA time zone database, such as Europe/Berlin or UTC"


@dataclass(frozen=True, slots=True)
class LocalInstant:
    """A local time of one date, and when it is."""

    at: datetime
    """In UTC."""
    odd: str = ""
    """What is unusual about it, because clocks change; empty as a rule."""


def parse_zone(field: str, value: object) -> ZoneInfo:
    """Read the name of a time zone."""
    try:
        # ZoneInfo also takes relative paths of its database, and some of those are no zones.
        if isinstance(value, str) and value and not value.startswith(("posix", "right")):
            return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise BadRequest(field, value, _ZONE_WANT)


def parse_time(field: str, value: object, *, end: bool = False) -> int:
    """Read a time of day as minutes since midnight; `end`: 24:00 is allowed."""
    want = "a time from 00:00 to 24:00, such as 07:30" if end else "a time from 00:00 to 23:59, such as 07:30"
    if not (isinstance(value, str) and len(value) == 5 and value[2] == ":"):
        raise BadRequest(field, value, want)
    hours, minutes = value[:2], value[3:]
    if not (hours.isascii() and hours.isdigit() and minutes.isascii() and minutes.isdigit()):
        raise BadRequest(field, value, want)
    found = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or found >= DAY_MINUTES + end:
        raise BadRequest(field, value, want)
    return found


def parse_date(field: str, value: object) -> date:
    """Read a date as ISO 8601 writes it."""
    try:
        if isinstance(value, str) and len(value) == 10:
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise BadRequest(field, value, "a date such as 2026-12-24")


def show_time(minutes: int) -> str:
    """Write minutes since midnight as a time of day."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def instant(zone: ZoneInfo, day: date, minutes: int) -> LocalInstant:
    """Return when it is this time of this date; minutes of the next date count on from 1440."""
    local = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minutes)
    first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) != local:
        jump = _jump(zone, second, first)
        shown = f"{jump.astimezone(zone):%H:%M}"
        return LocalInstant(jump, f"clocks skip {local:%H:%M}: at {shown}")
    if first != second:
        return LocalInstant(first, f"{local:%H:%M} comes twice: the first time")
    hours = day_hours(zone, local.date())
    return LocalInstant(first, "" if hours == 24 else f"the day has {hours:g} hours")


def day_hours(zone: ZoneInfo, day: date) -> float:
    """Return how long a date lasts in hours: 24, or 23 and 25 when clocks change."""
    begin, end = (_begin(zone, each) for each in (day, day + timedelta(days=1)))
    return (end - begin).total_seconds() / 3600


def _begin(zone: ZoneInfo, day: date) -> datetime:
    local = datetime.combine(day, datetime.min.time())
    first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    skipped = first.astimezone(zone).replace(tzinfo=None) != local
    return _jump(zone, second, first) if skipped else first


def _jump(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the second at which clocks jump forward, between two instants on both sides of it."""
    offset = before.astimezone(zone).utcoffset()
    seconds = int((after - before).total_seconds())
    low, high = 0, seconds
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
