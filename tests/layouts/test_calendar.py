"""Calendar arithmetic: gaps, exceptions, clocks that change, and calendars that are refused."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.layouts.calendar import DAYS, LayoutCalendar
from milligpu.layouts.local_time import DAY_MINUTES, day_hours, instant
from milligpu.layouts.spec import parse_calendar
from milligpu.model.errors import BadRequest

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
# Half an hour, whole hours, a skipped date, both hemispheres, and none.
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata", "UTC")


def made(*windows: dict[str, Any], exceptions: list[dict[str, Any]] | None = None, **more: Any) -> LayoutCalendar:
    spec = {"zone": "Europe/Berlin", "default": "night", "windows": list(windows), "exceptions": exceptions, **more}
    return parse_calendar({"metadata": {"name": "campus"}, "spec": spec}, NEW_YEAR).calendar


def window(
    begin: str, end: str, layout: str = "day", days: tuple[str, ...] = ("Mon-Fri",), **more: str
) -> dict[str, Any]:
    return {"days": list(days), "from": begin, "to": end, "layout": layout, **more}


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)


def test_a_window_holds_from_its_begin_to_its_end_and_the_default_otherwise() -> None:
    calendar = made(window("07:00", "20:00"))
    shown = {at: calendar.layout_at(berlin(at)) for at in (
        "2026-11-18 06:59", "2026-11-18 07:00", "2026-11-18 19:59", "2026-11-18 20:00", "2026-11-21 12:00",
    )}  # fmt: skip
    assert list(shown.values()) == ["night", "day", "day", "night", "night"]


def test_the_next_seven_switches_are_in_order_and_over_the_weekend() -> None:
    found = made(window("07:00", "20:00")).next_switches(berlin("2026-11-19 12:00"))
    assert [f"{each.local:%a %H:%M} {each.after}" for each in found] == [
        "Thu 20:00 night", "Fri 07:00 day", "Fri 20:00 night", "Mon 07:00 day", "Mon 20:00 night", "Tue 07:00 day",
        "Tue 20:00 night",
    ]  # fmt: skip
    assert not any(each.odd for each in found)
    assert found[0].at == datetime(2026, 11, 19, 19, tzinfo=UTC)


def test_a_window_over_midnight_ends_on_the_next_day_also_from_sunday_to_monday() -> None:
    calendar = made(window("22:00", "06:00", days=("Sun",)))
    assert calendar.layout_at(berlin("2026-11-23 05:59")) == "day"
    assert calendar.layout_at(berlin("2026-11-23 06:00")) == "night"


def test_an_exception_goes_before_the_windows() -> None:
    exams = {"name": "exams", "dates": ["2026-11-19"], "from": "09:00", "to": "12:00", "layout": "exam"}
    calendar = made(window("07:00", "20:00"), exceptions=[exams, {"dates": ["2026-12-25"], "layout": "night"}])
    found = calendar.next_switches(berlin("2026-11-19 06:00"), 4)
    assert [f"{each.local:%H:%M} {each.after}" for each in found] == [
        "07:00 day", "09:00 exam", "12:00 day", "20:00 night",
    ]  # fmt: skip
    assert found[1].why == "exams 2026-11-19"
    assert calendar.layout_at(berlin("2026-12-25 12:00")) == "night"


def test_a_time_that_clocks_skip_is_when_they_jump_and_is_marked() -> None:
    [switch] = made(window("02:30", "04:00", days=("Sun",))).next_switches(berlin("2026-03-29 00:00"), 1)
    assert switch.at == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert switch.odd == "clocks skip 02:30: at 03:00"


def test_a_window_that_clocks_skip_is_left_out_that_day() -> None:
    calendar = made(window("02:15", "02:45", days=("Sun",)))
    assert [f"{each.local:%m-%d}" for each in calendar.next_switches(berlin("2026-03-28 00:00"), 2)] == [
        "04-05"
    ] * 2


def test_a_time_that_comes_twice_is_the_first_and_is_marked() -> None:
    [switch] = made(window("02:30", "04:00", days=("Sun",))).next_switches(berlin("2026-10-25 00:00"), 1)
    assert switch.at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert switch.odd == "02:30 comes twice: the first time"


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)])
def test_days_of_23_and_25_hours_are_counted_and_their_switches_marked(day: str, hours: int) -> None:
    zone = ZoneInfo("Europe/Berlin")
    assert day_hours(zone, date.fromisoformat(day)) == hours
    whole = made(window("00:00", "24:00", days=("Mon-Sun",), layout="night"), default="day")
    assert not whole.next_switches(NEW_YEAR)
    found = made(window("07:00", "20:00", days=("Mon-Sun",))).next_switches(berlin(f"{day} 01:00"), 1)
    assert found[0].local.hour == 7
    assert found[0].odd == ("" if hours == 24 else f"the day has {hours} hours")


def test_half_an_hour_of_daylight_saving_makes_odd_days_too() -> None:
    assert day_hours(ZoneInfo("Australia/Lord_Howe"), date(2026, 4, 5)) == 24.5


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (
            [window("07:00", "20:00"), window("19:00", "22:00", "exam", ("Fri",))],
            "spec.windows[1]: invalid value 'Fri 19:00-22:00 Europe/Berlin': must be without overlap with "
            "spec.windows[0] (Mon,Tue,Wed,Thu,Fri 07:00-20:00 Europe/Berlin): both hold on Fri at 19:00",
        ),
        (
            [window("22:00", "06:00", days=("Sun",)), window("05:00", "07:00", "exam", ("Mon",))],
            "spec.windows[1]: invalid value 'Mon 05:00-07:00 Europe/Berlin': must be without overlap with "
            "spec.windows[0] (Sun 22:00-06:00 Europe/Berlin): both hold on Mon at 05:00",
        ),
        # They touch in winter; in the three weeks when only America has changed its clocks they overlap.
        (
            [window("07:00", "13:00"), window("07:00", "08:00", "exam", zone="America/New_York")],
            "spec.windows[1]: invalid value 'Mon,Tue,Wed,Thu,Fri 07:00-08:00 America/New_York': must be without "
            "overlap with spec.windows[0] (Mon,Tue,Wed,Thu,Fri 07:00-13:00 Europe/Berlin): both hold at "
            "2026-03-09 11:00 UTC",
        ),
    ],
)
def test_windows_that_overlap_are_refused_with_field_value_and_what_is_allowed(
    windows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        made(*windows)
    assert refused.value.message == message


TO, FROM = "a time from 00:00 to 24:00, such as 07:30", "a time from 00:00 to 23:59, such as 07:30"
WEEKDAYS = "a list of Mon, Tue, Wed, Thu, Fri, Sat, Sun, or of ranges such as Mon-Fri"
IANA = "a name of the IANA time zone database, such as Europe/Berlin or UTC"


@pytest.mark.parametrize(
    ("bad", "field", "value", "want"),
    [
        (window("07:00", "7:00"), "to", "7:00", TO),
        (window("24:00", "07:00"), "from", "24:00", FROM),
        (window("07:00", "07:60"), "to", "07:60", TO),
        (window("07:00", "07:00"), "to", "07:00", "another time than from; whole days are 00:00 to 24:00"),
        (window("07:00", "08:00", days=("Monday",)), "days[0]", "Monday", WEEKDAYS),
        (window("07:00", "08:00", zone="Berlin"), "zone", "Berlin", IANA),
        (window("07:00", "08:00", zone="../etc/passwd"), "zone", "../etc/passwd", IANA),
        ({**window("07:00", "08:00"), "x": "y"}, "x", "y", "left out; known are days, from, to, zone, layout"),
        (
            window("07:00", "08:00", "Day"),
            "layout",
            "Day",
            "the name of a GpuLayout: at most 63 lower-case letters, digits, '-' and '.'",
        ),
    ],
)
def test_a_bad_window_is_refused_with_field_value_and_what_is_allowed(
    bad: dict[str, Any], field: str, value: str, want: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        made(bad)
    assert refused.value.message == f"spec.windows[0].{field}: invalid value {value!r}: must be {want}"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"zone": ""}, "spec.zone"),
        ({"default": None}, "spec.default"),
        ({"exceptions": [{"dates": ["2026-02-30"], "layout": "night"}]}, "spec.exceptions[0].dates[0]"),
        ({"exceptions": [{"layout": "night"}]}, "spec.exceptions[0].dates"),
        ({"exceptions": [{"dates": ["2026-12-24"], "layout": "a"}] * 2}, "spec.exceptions[1]"),
        ({"onFailure": "page"}, "spec.onFailure"),
        ({"deadlineSeconds": 5}, "spec.deadlineSeconds"),
        ({"override": {"layout": "day", "until": "tomorrow"}}, "spec.override.until"),
        ({"override": {"layout": "day", "until": "2026-12-24T18:00:00"}}, "spec.override.until"),
        ({"paused": "yes"}, "spec.paused"),
        ({"nodeSelector": {"pool": 1}}, "spec.nodeSelector.pool"),
    ],
)
def test_other_bad_fields_are_refused_by_name(more: dict[str, Any], field: str) -> None:
    exceptions = more.pop("exceptions", None)
    with pytest.raises(BadRequest) as refused:
        made(exceptions=exceptions, **more)
    assert refused.value.field == field


# -- properties ----------------------------------------------------------------------------------------------

_zones = st.sampled_from(ZONES)
_dates = st.dates(date(2011, 12, 25), date(2027, 12, 31))
_minutes = st.integers(0, DAY_MINUTES)


@given(_zones, _dates, st.lists(_minutes, min_size=2, max_size=2))
def test_a_later_local_time_is_never_an_earlier_instant(zone: str, day: date, minutes: list[int]) -> None:
    early, late = sorted(minutes)
    assert instant(ZoneInfo(zone), day, early).at <= instant(ZoneInfo(zone), day, late).at


@given(_zones, _dates, _minutes)
def test_an_instant_shows_its_local_time_unless_clocks_skip_it(zone: str, day: date, minutes: int) -> None:
    found = instant(ZoneInfo(zone), day, minutes)
    local = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minutes)
    if "skip" not in found.odd:
        assert found.at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local
    else:
        shown = found.at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        before = (found.at - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        assert before < local < shown or shown == local


@st.composite
def _calendars(draw: st.DrawFn) -> LayoutCalendar:
    """One zone, windows on whole hours that do not overlap."""
    zone = draw(_zones)
    hours = sorted(draw(st.sets(st.integers(0, 23), max_size=6)))
    days = st.sets(st.sampled_from(DAYS), min_size=1)
    windows = [
        window(f"{begin:02}:00", f"{end:02}:00", draw(st.sampled_from("abc")), tuple(draw(days)))
        for begin, end in zip(hours[::2], hours[1::2], strict=False)
    ]
    return made(*windows, zone=zone, default="c")


@settings(max_examples=25, deadline=None)
@given(_calendars(), st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)))
def test_between_two_switches_one_layout_holds(calendar: LayoutCalendar, at: datetime) -> None:
    present, begin = calendar.layout_at(at), at
    for switch in calendar.next_switches(at, 5):
        assert switch.before == present != switch.after
        for part in (0.0, 0.3, 0.9):
            assert calendar.layout_at(begin + (switch.at - begin) * part) == present
        assert calendar.layout_at(switch.at) == switch.after
        present, begin = switch.after, switch.at
