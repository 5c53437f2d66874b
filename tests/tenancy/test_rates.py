"""Measured use is a rate over the last seconds."""

import pytest

from milligpu.tenancy.rates import GpuTimeRates


def test_utilization_is_unknown_before_two_samples() -> None:
    rates = GpuTimeRates()
    assert rates.rates("s") is None
    rates.add("s", 1.0, [5])
    assert rates.rates("s") is None


def test_it_is_the_part_of_the_time_within_the_window() -> None:
    rates = GpuTimeRates(10)
    for second in range(31):
        # All of the GPU for ten seconds, then a quarter of it.
        busy = min(second, 10) + max(0, second - 10) / 4
        rates.add("s", second, [round(busy * 1e9), 0])
    assert rates.rates("s") == pytest.approx((0.25, 0))


def test_a_counter_that_restarts_gives_no_negative_rate() -> None:
    rates = GpuTimeRates()
    rates.add("s", 0, [10**9])
    rates.add("s", 1, [2 * 10**9])
    rates.add("s", 2, [0])
    assert rates.rates("s") is None
    rates.add("s", 3, [10**9 // 2])
    assert rates.rates("s") == (0.5,)


def test_a_forgotten_tenant_has_no_rate_and_others_keep_theirs() -> None:
    rates = GpuTimeRates()
    for second in range(2):
        rates.add("a", second, [second * 10**9])
        rates.add("b", second, [0])
    assert (rates.rates("a"), rates.rates("b")) == ((1.0,), (0.0,))
    rates.forget("a")
    assert (rates.rates("a"), rates.rates("b")) == (None, (0.0,))
