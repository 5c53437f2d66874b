"""What a user had of late needs one number and a time, and is the same however often it is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.queues.usage import DecayedUsage


def test_half_of_what_was_held_is_forgotten_after_the_half_life() -> None:
    usage = DecayedUsage(average=800.0, at=100.0)
    assert usage.until(110.0, half_life_s=10.0).average == pytest.approx(400.0)


def test_who_holds_a_share_for_long_has_it_on_average() -> None:
    usage = DecayedUsage().hold(500, 0.0, half_life_s=10.0)
    assert usage.until(1000.0, half_life_s=10.0).average == pytest.approx(500.0)
    assert usage.hold(-500, 0.0, half_life_s=10.0).until(1000.0, half_life_s=10.0).average == 0.0


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=20), st.integers(0, 100_000))
def test_asking_in_between_changes_nothing(steps: list[float], held: int) -> None:
    start = DecayedUsage(300.0, 0.0, held)
    often = start
    for step in steps:
        often = often.until(often.at + step)
    assert often.average == pytest.approx(start.until(often.at).average)


def test_a_clock_that_goes_back_changes_nothing() -> None:
    usage = DecayedUsage(300.0, 50.0, 100)
    assert usage.until(20.0) == usage
