"""Time with reduced clocks comes from the driver's counters, or from samples where the driver has none."""

import pytest

from milligpu.nvml.field_values import throttled_ns
from milligpu.nvml.readings import GpuVitals, ThrottleReason
from milligpu.nvml.throttle_times import ThrottleSource, ThrottleTimes


def test_the_drivers_counters_are_taken_as_they_are() -> None:
    times = ThrottleTimes()
    slowed = {ThrottleReason.POWER: 2_500_000_000, ThrottleReason.THERMAL: 0}
    times.add(GpuVitals(0, "GPU-0", throttled_ns=slowed), 10.0)
    found = times.times["GPU-0"]
    assert found.source is ThrottleSource.COUNTERS
    assert found.seconds == {ThrottleReason.POWER: 2.5, ThrottleReason.THERMAL: 0.0}


def test_without_counters_the_time_between_samples_is_added_but_no_gap() -> None:
    times = ThrottleTimes()
    for now, reasons in (
        (0.0, {"power"}),
        (1.0, {"power"}),
        (2.0, {"thermal", "power"}),
        (60.0, {"power"}),
        (61.0, ()),
    ):
        times.add(GpuVitals(0, "GPU-0", throttled=frozenset(map(ThrottleReason, reasons))), now)
    found = times.times["GPU-0"]
    assert found.source is ThrottleSource.SAMPLES
    assert found.seconds[ThrottleReason.POWER] == pytest.approx(2.0)
    assert found.seconds[ThrottleReason.THERMAL] == pytest.approx(1.0)


def test_a_gpu_that_reports_neither_has_no_time_instead_of_0() -> None:
    times = ThrottleTimes()
    times.add(GpuVitals(0, "GPU-0"), 1.0)
    assert times.times == {}


def test_counters_of_one_reason_are_joined_and_missing_ones_are_left_out() -> None:
    assert throttled_ns({}) is None
    assert throttled_ns({74: 3, 271: 4}) == {ThrottleReason.POWER: 7}
    assert throttled_ns({269: 5, 270: 2}) == {ThrottleReason.THERMAL: 5}
    assert throttled_ns({75: 9}) == {ThrottleReason.THERMAL: 9}
