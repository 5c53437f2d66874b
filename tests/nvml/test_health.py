"""The rule over readings and XIDs, without any card."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.devices.health import QUIET_SECONDS, Health, Record, judge, note_observation, note_xid
from milligpu.devices.reading import Lost, Reading
from milligpu.model.gpu import State
from milligpu.model.units import Mib
from milligpu.model.xid import APPLICATION_XIDS

SOUND = Reading(0, "GPU-0", Mib(100), Mib(0), temperature=40, slowdown_temperature=90, ecc_uncorrected=0)
SAYS_NOTHING_NEEDED = replace(SOUND, reset_needed=False)
SAYS_RESET = replace(SOUND, reset_needed=True)
OK = Health(State.OK)


def after(*steps: Reading | Lost | int, start: Record | None = None, seconds: float = 1.0) -> Health:
    """The verdict after readings and XIDs, one a second."""
    record = start or Record()
    for at, step in enumerate(steps):
        now = at * seconds
        record = note_xid(record, step, now) if isinstance(step, int) else note_observation(record, step, now)
    return judge(record)


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_an_applications_own_error_is_not_the_cards(xid: int) -> None:
    assert after(SOUND, xid, SOUND) == OK


def test_a_card_error_makes_it_sick_and_says_which() -> None:
    assert after(SOUND, 79) == Health(State.SICK, "XID 79: GPU has fallen off the bus")
    assert after(SOUND, 12345) == Health(State.SICK, "XID 12345")


def test_it_recovers_when_the_driver_no_longer_asks_for_a_reset() -> None:
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_RESET, SAYS_RESET).state is State.SICK
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_RESET, SAYS_NOTHING_NEEDED) == OK


def test_a_driver_that_never_asked_does_not_end_it_early() -> None:
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_NOTHING_NEEDED, SAYS_NOTHING_NEEDED).state is State.SICK


def test_where_the_driver_does_not_say_a_quiet_time_ends_it() -> None:
    assert after(79, SOUND, seconds=QUIET_SECONDS - 1).state is State.SICK
    assert after(79, SOUND, seconds=QUIET_SECONDS) == OK
    assert after(79, SOUND, 48, SOUND, seconds=QUIET_SECONDS - 1).reason.startswith("XID 48")


def test_a_lost_card_is_sick_until_it_answers() -> None:
    lost = Lost(0, "GPU-0")
    assert after(SOUND, lost).state is State.SICK
    assert after(SOUND, lost, SOUND) == OK
    assert after(SOUND, 79, lost).reason.startswith("lost")
    assert after(SOUND, 79, lost, SOUND) == OK


def test_heat_comes_and_goes_with_a_distance() -> None:
    hot, cooling, cool = (replace(SOUND, temperature=degrees) for degrees in (90, 86, 84))
    assert after(hot).state is State.SICK
    assert after(hot, cooling).state is State.SICK
    assert after(hot, cool) == OK
    assert after(cooling) == OK


def test_uncorrectable_errors_count_unless_the_driver_knows_better() -> None:
    spoilt = replace(SOUND, ecc_uncorrected=2)
    assert after(spoilt) == Health(State.SICK, "2 uncorrectable memory errors")
    assert after(spoilt, SOUND) == OK
    assert after(replace(spoilt, reset_needed=False)) == OK


def test_a_card_that_tells_nothing_is_not_sick_for_it() -> None:
    assert after(Reading(0, "GPU-0", Mib(100), Mib(0))) == OK


@given(st.lists(st.sampled_from([SOUND, SAYS_RESET, SAYS_NOTHING_NEEDED, Lost(0, "GPU-0"), 79, 13])))
def test_a_sound_reading_after_a_quiet_time_ends_everything(steps: list[Reading | Lost | int]) -> None:
    assert after(*steps, SAYS_NOTHING_NEEDED, SAYS_NOTHING_NEEDED, seconds=QUIET_SECONDS) == OK
