"""The sensors, on a clock that the tests control."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.softgpu.meter import SECOND, WARMING_SECONDS, Context, SensorModel, Work
from milligpu.softgpu.models import find_model

MODEL = find_model("T4")
ONE, OTHER = Context(0, 100), Context(1, 200)
MEMORY = {100: 1000, 200: 2000}


def run(sensors: SensorModel, seconds: float, **busy: float) -> None:
    """Advance time in steps of 0.1 s; `one` and `other` are busy for these fractions of it."""
    parts = {ONE: busy.get("one", 0.0), OTHER: busy.get("other", 0.0)}
    totals = {context: sensors.known.get(context, Work()).busy for context in parts}
    for _ in range(round(seconds * 10)):
        step = SECOND // 10
        totals = {context: total + int(parts[context] * step) for context, total in totals.items()}
        sensors.sample(sensors.now + step, {context: Work(busy=total) for context, total in totals.items()}, MEMORY)


def test_utilization_is_averaged_over_the_last_second() -> None:
    sensors = SensorModel(MODEL, 0)
    run(sensors, 5, one=0.25, other=0.5)
    assert sensors.load().busy == pytest.approx(0.75)
    assert {pid: load.busy for pid, load in sensors.loads(0).items()} == pytest.approx({100: 0.25, 200: 0.5})
    run(sensors, 0.5)
    assert sensors.load().busy == pytest.approx(0.375)
    run(sensors, 0.5)
    assert sensors.load().busy == 0
    assert sensors.loads(0) == {}


def test_utilization_never_exceeds_one() -> None:
    sensors = SensorModel(MODEL, 0)
    run(sensors, 2, one=1.0, other=1.0)
    assert sensors.load().busy == 1


def test_a_long_gap_between_samples_is_one_average() -> None:
    sensors = SensorModel(MODEL, 0)
    sensors.sample(3600 * SECOND, {ONE: Work(busy=1800 * SECOND)}, MEMORY)
    assert sensors.load().busy == pytest.approx(0.5)


def test_work_of_a_new_context_in_a_reused_slot_is_counted() -> None:
    sensors = SensorModel(MODEL, 0)
    sensors.sample(SECOND, {ONE: Work(busy=SECOND)}, MEMORY)
    sensors.sample(2 * SECOND, {ONE: Work(busy=SECOND // 2)}, MEMORY)
    assert sensors.load().busy == pytest.approx(0.5)


def test_copied_bytes_become_a_rate() -> None:
    sensors = SensorModel(MODEL, 0)
    sensors.sample(2 * SECOND, {ONE: Work(received=4000, sent=2000)}, MEMORY)
    assert (sensors.load().received, sensors.load().sent) == pytest.approx((2000, 1000))


def test_power_follows_the_load_up_to_the_limit() -> None:
    sensors = SensorModel(MODEL, 0)
    assert sensors.power(0.0) == MODEL.power.idle
    assert sensors.power(1.0) == MODEL.power.default
    sensors.power_limit = 60_000
    assert sensors.power(1.0) == 60_000


def test_energy_is_power_over_time() -> None:
    sensors = SensorModel(MODEL, 0)
    run(sensors, 10)
    assert sensors.millijoules == pytest.approx(10 * MODEL.power.idle)
    run(sensors, 10, one=1.0)
    assert sensors.millijoules == pytest.approx(10 * (MODEL.power.idle + MODEL.power.default))


def test_temperature_follows_the_load_up_and_down() -> None:
    sensors = SensorModel(MODEL, 0)
    run(sensors, WARMING_SECONDS, one=1.0)
    warm = MODEL.heat.idle + (MODEL.heat.load - MODEL.heat.idle) * (1 - 2.718281828**-1)
    assert sensors.celsius == pytest.approx(warm, abs=0.1)
    run(sensors, 20 * WARMING_SECONDS, one=1.0)
    assert sensors.celsius == pytest.approx(MODEL.heat.load, abs=0.1)
    run(sensors, 20 * WARMING_SECONDS)
    assert sensors.celsius == pytest.approx(MODEL.heat.idle, abs=0.1)


@given(st.lists(st.integers(1, 30 * SECOND), min_size=1, max_size=20))
def test_the_sampling_rate_does_not_change_the_sensors(steps: list[int]) -> None:
    often, once = SensorModel(MODEL, 0), SensorModel(MODEL, 0)
    for step in steps:
        now = often.now + step
        often.sample(now, {ONE: Work(busy=now // 2)}, MEMORY)
    once.sample(often.now, {ONE: Work(busy=often.now // 2)}, MEMORY)
    assert often.celsius == pytest.approx(once.celsius, abs=1e-3)
    assert often.millijoules == pytest.approx(once.millijoules, rel=1e-3, abs=1)


def test_accounting_remembers_a_process_after_its_end() -> None:
    sensors = SensorModel(MODEL, 0)
    run(sensors, 1, one=1.0)
    assert sensors.accounted == {}
    sensors.accounting = True
    run(sensors, 2, one=0.5)
    sensors.sample(sensors.now + SECOND, {}, {200: 500})
    process = sensors.accounted[100]
    assert (process.most_memory, process.work.busy) == (1000, SECOND)
    assert process.end is not None
    assert sensors.accounted[200].end is None
