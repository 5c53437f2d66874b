"""What the sensors show, with a clock that the tests turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.softgpu.meter import SECOND, WARMING_SECONDS, Context, Meter, Work
from milligpu.softgpu.models import find_model

MODEL = find_model("T4")
ONE, OTHER = Context(0, 100), Context(1, 200)
MEMORY = {100: 1000, 200: 2000}


def run(meter: Meter, seconds: float, **busy: float) -> None:
    """Let time pass in steps of 0.1 s; `one` and `other` are the parts of it in which they work."""
    parts = {ONE: busy.get("one", 0.0), OTHER: busy.get("other", 0.0)}
    totals = {context: meter.known.get(context, Work()).busy for context in parts}
    for _ in range(round(seconds * 10)):
        step = SECOND // 10
        totals = {context: total + int(parts[context] * step) for context, total in totals.items()}
        meter.sample(meter.now + step, {context: Work(busy=total) for context, total in totals.items()}, MEMORY)


def test_utilisation_is_that_of_the_last_second() -> None:
    meter = Meter(MODEL, 0)
    run(meter, 5, one=0.25, other=0.5)
    assert meter.load().busy == pytest.approx(0.75)
    assert {pid: load.busy for pid, load in meter.loads(0).items()} == pytest.approx({100: 0.25, 200: 0.5})
    run(meter, 0.5)
    assert meter.load().busy == pytest.approx(0.375)
    run(meter, 0.5)
    assert meter.load().busy == 0
    assert meter.loads(0) == {}


def test_no_card_is_more_than_fully_used() -> None:
    meter = Meter(MODEL, 0)
    run(meter, 2, one=1.0, other=1.0)
    assert meter.load().busy == 1


def test_a_long_time_without_a_look_is_one_average() -> None:
    meter = Meter(MODEL, 0)
    meter.sample(3600 * SECOND, {ONE: Work(busy=1800 * SECOND)}, MEMORY)
    assert meter.load().busy == pytest.approx(0.5)


def test_work_of_a_new_context_in_an_old_place_is_counted() -> None:
    meter = Meter(MODEL, 0)
    meter.sample(SECOND, {ONE: Work(busy=SECOND)}, MEMORY)
    meter.sample(2 * SECOND, {ONE: Work(busy=SECOND // 2)}, MEMORY)
    assert meter.load().busy == pytest.approx(0.5)


def test_bytes_become_a_rate() -> None:
    meter = Meter(MODEL, 0)
    meter.sample(2 * SECOND, {ONE: Work(received=4000, sent=2000)}, MEMORY)
    assert (meter.load().received, meter.load().sent) == pytest.approx((2000, 1000))


def test_power_follows_the_load_up_to_the_limit() -> None:
    meter = Meter(MODEL, 0)
    assert meter.power(0.0) == MODEL.power.idle
    assert meter.power(1.0) == MODEL.power.default
    meter.power_limit = 60_000
    assert meter.power(1.0) == 60_000


def test_energy_is_power_over_time() -> None:
    meter = Meter(MODEL, 0)
    run(meter, 10)
    assert meter.millijoules == pytest.approx(10 * MODEL.power.idle)
    run(meter, 10, one=1.0)
    assert meter.millijoules == pytest.approx(10 * (MODEL.power.idle + MODEL.power.default))


def test_temperature_goes_towards_that_of_the_load_and_back() -> None:
    meter = Meter(MODEL, 0)
    run(meter, WARMING_SECONDS, one=1.0)
    warm = MODEL.heat.idle + (MODEL.heat.load - MODEL.heat.idle) * (1 - 2.718281828**-1)
    assert meter.celsius == pytest.approx(warm, abs=0.1)
    run(meter, 20 * WARMING_SECONDS, one=1.0)
    assert meter.celsius == pytest.approx(MODEL.heat.load, abs=0.1)
    run(meter, 20 * WARMING_SECONDS)
    assert meter.celsius == pytest.approx(MODEL.heat.idle, abs=0.1)


@given(st.lists(st.integers(1, 30 * SECOND), min_size=1, max_size=20))
def test_how_often_somebody_looks_changes_nothing(steps: list[int]) -> None:
    often, once = Meter(MODEL, 0), Meter(MODEL, 0)
    for step in steps:
        now = often.now + step
        often.sample(now, {ONE: Work(busy=now // 2)}, MEMORY)
    once.sample(often.now, {ONE: Work(busy=often.now // 2)}, MEMORY)
    assert often.celsius == pytest.approx(once.celsius, abs=1e-3)
    assert often.millijoules == pytest.approx(once.millijoules, rel=1e-3, abs=1)


def test_accounting_remembers_a_process_after_its_end() -> None:
    meter = Meter(MODEL, 0)
    run(meter, 1, one=1.0)
    assert meter.lives == {}
    meter.accounting = True
    run(meter, 2, one=0.5)
    meter.sample(meter.now + SECOND, {}, {200: 500})
    life = meter.lives[100]
    assert (life.most_memory, life.work.busy) == (1000, SECOND)
    assert life.end is not None
    assert meter.lives[200].end is None
