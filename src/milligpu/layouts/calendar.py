"""Which layout holds when: windows of the week, exceptions for dates, and a default for the rest.

A window begins on its days and ends at its next `to`; one that ends at or before it begins ends on the next day.
Windows never overlap, so at each instant one layout holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import combinations, islice, pairwise
from typing import cast
from zoneinfo import ZoneInfo

from milligpu.layouts.local_time import DAY_MINUTES, instant, show_time
from milligpu.model.errors import BadRequest

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WEEK = 7 * DAY_MINUTES
SHOWN_SWITCHES = 7
"""How many switches ahead are shown: a week of days and nights is seen with two commands at most."""
# A calendar whose windows all ask for one layout has no switch at all; the search must end.
_HORIZON = timedelta(days=400)
# Zones on both sides of the date line, and windows that began the day before.
_MARGIN = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """A time of the week with its layout."""

    days: frozenset[int]
    """On which it begins; 0 is Monday."""
    begin: int
    end: int
    """Minutes since midnight of the day on which it begins; more than 1440 if it ends on the next day."""
    zone: ZoneInfo
    layout: str

    def __str__(self) -> str:
        days = ",".join(DAYS[day] for day in sorted(self.days))
        end = self.end if self.end <= DAY_MINUTES else self.end - DAY_MINUTES
        return f"{days} {show_time(self.begin)}-{show_time(end)} {self.zone.key}"


@dataclass(frozen=True, slots=True)
class CalendarException:
    """Dates with a layout of their own; it goes before the windows."""

    dates: tuple[date, ...]
    begin: int
    end: int
    zone: ZoneInfo
    layout: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A window or an exception on one date, as instants."""

    begin: datetime
    end: datetime
    layout: str
    odd_begin: str
    odd_end: str
    why: str


@dataclass(frozen=True, slots=True)
class LayoutSwitch:
    """One change of the layout."""

    at: datetime
    """In UTC."""
    zone: ZoneInfo
    before: str
    after: str
    why: str
    """The window or exception that begins, or that ended."""
    odd: str = ""
    """What clocks do that day, if they change."""

    @property
    def local(self) -> datetime:
        return self.at.astimezone(self.zone)


@dataclass(frozen=True, slots=True)
class LayoutCalendar:
    """What a `GpuCalendar` says about time."""

    zone: ZoneInfo
    default: str
    windows: tuple[CalendarWindow, ...] = ()
    exceptions: tuple[CalendarException, ...] = ()

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts that it names, the default first."""
        named = (self.default, *(each.layout for each in (*self.windows, *self.exceptions)))
        return tuple(dict.fromkeys(named))

    def layout_at(self, at: datetime) -> str:
        """Return the layout that holds at this instant."""
        day = at.astimezone(UTC).date()
        for intervals in (self._exceptions(day), self._windows(day, day)):
            found = [each.layout for each in intervals if each.begin <= at < each.end]
            if found:
                return found[0]
        return self.default

    def switches(self, after: datetime) -> Iterator[LayoutSwitch]:
        """Yield the switches later than this instant, in order, as far as about a year ahead."""
        if len(self.layouts) == 1:
            return
        start, step = after.astimezone(UTC).date(), timedelta(days=7)
        now = self.layout_at(after)
        seen = after
        while seen < after + _HORIZON:
            until = seen + step
            for at, odd, why in self._edges(start, until.date()):
                if not seen < at <= until:
                    continue
                layout = self.layout_at(at)
                if layout != now:
                    yield LayoutSwitch(at, self.zone, now, layout, why, odd)
                    now = layout
            seen, start = until, until.date()

    def next_switches(self, after: datetime, count: int = SHOWN_SWITCHES) -> tuple[LayoutSwitch, ...]:
        """Return the next few switches."""
        return tuple(islice(self.switches(after), count))

    def _edges(self, first: date, last: date) -> list[tuple[datetime, str, str]]:
        """Return all begins and ends of some days, with what is odd about them; the begin of two at once."""
        intervals = [*self._windows(first, last), *self._all_exceptions()]
        ends = {each.end: (each.odd_end, f"end of {each.why}") for each in intervals}
        begins = {each.begin: (each.odd_begin, each.why) for each in intervals}
        return [(at, *found) for at, found in sorted({**ends, **begins}.items())]

    def _windows(self, first: date, last: date) -> list[Interval]:
        days = _days(first - _MARGIN, last + _MARGIN)
        return [
            interval
            for day in days
            for window in self.windows
            if day.weekday() in window.days and (interval := _interval(window, day, str(window))) is not None
        ]

    def _exceptions(self, around: date) -> list[Interval]:
        near = [around + timedelta(days=shift) for shift in range(-_MARGIN.days, _MARGIN.days + 1)]
        return self._all_exceptions(frozenset(near))

    def _all_exceptions(self, days: frozenset[date] | None = None) -> list[Interval]:
        return [
            interval
            for each in self.exceptions
            for day in each.dates
            if (days is None or day in days)
            and (interval := _interval(each, day, f"{each.name or 'exception'} {day}")) is not None
        ]


def _days(first: date, last: date) -> Iterator[date]:
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def _interval(window: CalendarWindow | CalendarException, day: date, why: str) -> Interval | None:
    """Return the window on one date; None on a date whose clocks skip all of it."""
    begin, end = (instant(window.zone, day, minutes) for minutes in (window.begin, window.end))
    if begin.at >= end.at:
        return None
    return Interval(begin.at, end.at, window.layout, begin.odd, end.odd, why)


# -- refusals ------------------------------------------------------------------------------------------------


def refuse_overlaps(calendar: LayoutCalendar, start: datetime) -> None:
    """Refuse windows that overlap: of one zone in any week, of several zones within a year from `start`."""
    for (first, one), (second, other) in combinations(enumerate(calendar.windows), 2):
        if one.zone.key == other.zone.key:
            overlap = _overlap_in_week(one, other)
        else:
            overlap = _overlap_in_year(one, other, start)
        if overlap:
            want = f"without overlap with spec.windows[{first}] ({one}): both hold {overlap}"
            raise BadRequest(f"spec.windows[{second}]", str(other), want)
    seen: list[tuple[int, Interval]] = []
    for number, each in enumerate(calendar.exceptions):
        for day in each.dates:
            interval = _interval(each, day, "")
            for before, past in seen:
                if interval is not None and past.begin < interval.end and interval.begin < past.end:
                    want = f"without overlap with spec.exceptions[{before}]"
                    raise BadRequest(f"spec.exceptions[{number}]", day.isoformat(), want)
            if interval is not None:
                seen.append((number, interval))


def _overlap_in_week(one: CalendarWindow, other: CalendarWindow) -> str:
    for day in sorted(one.days):
        for late in sorted(other.days):
            for shift in (-WEEK, 0, WEEK):
                begin = max(day * DAY_MINUTES + one.begin, late * DAY_MINUTES + other.begin + shift)
                end = min(day * DAY_MINUTES + one.end, late * DAY_MINUTES + other.end + shift)
                if begin < end:
                    at = begin % WEEK
                    return f"on {DAYS[at // DAY_MINUTES]} at {show_time(at % DAY_MINUTES)}"
    return ""


def _overlap_in_year(one: CalendarWindow, other: CalendarWindow, start: datetime) -> str:
    first = start.astimezone(UTC).date()
    days = tuple(_days(first, first + timedelta(days=373)))
    intervals = sorted(
        (found.begin, found.end, number)
        for number, window in enumerate((one, other))
        for day in days
        if day.weekday() in window.days and (found := _interval(window, day, "")) is not None
    )
    for (_, end, left), (begin, _, right) in pairwise(intervals):
        if left != right and begin < end:
            return f"at {begin:%Y-%m-%d %H:%M} UTC"
    return ""


def parse_days(field: str, value: object) -> frozenset[int]:
    """Read days of the week, such as [Mon, Tue] or [Mon-Fri]."""
    want = f"a list of {', '.join(DAYS)}, or of ranges such as Mon-Fri"
    if not isinstance(value, list) or not value:
        raise BadRequest(field, cast("object", value), want)
    found: set[int] = set()
    for number, word in enumerate(cast("list[object]", value)):
        first, dash, last = str(word).partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise BadRequest(f"{field}[{number}]", word, want)
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, end + 1 + (7 if end < begin else 0))}
    return frozenset(found)
