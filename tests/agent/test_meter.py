"""Measured use is a rate over the last seconds."""

import pytest

from milligpu.agent.meter import Meter


def test_nothing_is_known_before_two_samples() -> None:
    meter = Meter()
    assert meter.rates("s") is None
    meter.add("s", 1.0, [5])
    assert meter.rates("s") is None


def test_it_is_the_part_of_the_time_within_the_window() -> None:
    meter = Meter(10)
    for second in range(31):
        # All of the GPU for ten seconds, then a quarter of it.
        busy = min(second, 10) + max(0, second - 10) / 4
        meter.add("s", second, [round(busy * 1e9), 0])
    assert meter.rates("s") == pytest.approx((0.25, 0))


def test_a_counter_that_starts_anew_does_not_become_negative() -> None:
    meter = Meter()
    meter.add("s", 0, [10**9])
    meter.add("s", 1, [2 * 10**9])
    meter.add("s", 2, [0])
    assert meter.rates("s") is None
    meter.add("s", 3, [10**9 // 2])
    assert meter.rates("s") == (0.5,)


def test_sessions_are_apart_and_forgotten() -> None:
    meter = Meter()
    for second in range(2):
        meter.add("a", second, [second * 10**9])
        meter.add("b", second, [0])
    assert (meter.rates("a"), meter.rates("b")) == ((1.0,), (0.0,))
    meter.forget("a")
    assert meter.known == {"b"}
    assert meter.rates("a") is None
