"""The rule over readings and XIDs, without any card."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.gpu import GpuState
from milligpu.model.xid import APPLICATION_XIDS
from milligpu.nvml.health import QUIET_SECONDS, GpuHealth, HealthHistory, assess, note_reading, note_xid
from milligpu.nvml.readings import GpuVitals, LostGpu

SOUND = GpuVitals(0, "GPU-0", temperature=40, slowdown_temperature=90, ecc_uncorrected=0)
SAYS_NOTHING_NEEDED = replace(SOUND, reset_needed=False)
SAYS_RESET = replace(SOUND, reset_needed=True)
OK = GpuHealth(GpuState.OK)


def after(*steps: GpuVitals | LostGpu | int, start: HealthHistory | None = None, seconds: float = 1.0) -> GpuHealth:
    """The verdict after readings and XIDs, one a second."""
    record = start or HealthHistory()
    for at, step in enumerate(steps):
        now = at * seconds
        record = note_xid(record, step, now) if isinstance(step, int) else note_reading(record, step, now)
    return assess(record)


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_an_xid_caused_by_an_application_does_not_make_the_gpu_unhealthy(xid: int) -> None:
    assert after(SOUND, xid, SOUND) == OK


def test_an_xid_makes_the_gpu_unhealthy_and_is_named() -> None:
    assert after(SOUND, 79) == GpuHealth(GpuState.UNHEALTHY, "XID 79: GPU has fallen off the bus")
    assert after(SOUND, 12345) == GpuHealth(GpuState.UNHEALTHY, "XID 12345")


def test_it_recovers_when_the_driver_no_longer_asks_for_a_reset() -> None:
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_RESET, SAYS_RESET).state is GpuState.UNHEALTHY
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_RESET, SAYS_NOTHING_NEEDED) == OK


def test_a_driver_that_never_asked_does_not_end_it_early() -> None:
    assert after(SAYS_NOTHING_NEEDED, 79, SAYS_NOTHING_NEEDED, SAYS_NOTHING_NEEDED).state is GpuState.UNHEALTHY


def test_where_the_driver_does_not_say_a_quiet_time_ends_it() -> None:
    assert after(79, SOUND, seconds=QUIET_SECONDS - 1).state is GpuState.UNHEALTHY
    assert after(79, SOUND, seconds=QUIET_SECONDS) == OK
    assert after(79, SOUND, 48, SOUND, seconds=QUIET_SECONDS - 1).message.startswith("XID 48")


def test_a_lost_gpu_is_unhealthy_until_it_answers() -> None:
    lost = LostGpu(0, "GPU-0")
    assert after(SOUND, lost).state is GpuState.UNHEALTHY
    assert after(SOUND, lost, SOUND) == OK
    assert after(SOUND, 79, lost).message.startswith("lost")
    assert after(SOUND, 79, lost, SOUND) == OK


def test_a_gpu_that_was_too_hot_is_healthy_only_when_clearly_cooler() -> None:
    hot, cooling, cool = (replace(SOUND, temperature=degrees) for degrees in (90, 86, 84))
    assert after(hot).state is GpuState.UNHEALTHY
    assert after(hot, cooling).state is GpuState.UNHEALTHY
    assert after(hot, cool) == OK
    assert after(cooling) == OK


def test_uncorrectable_errors_count_unless_the_driver_knows_better() -> None:
    spoilt = replace(SOUND, ecc_uncorrected=2)
    assert after(spoilt) == GpuHealth(GpuState.UNHEALTHY, "2 uncorrectable memory errors")
    assert after(spoilt, SOUND) == OK
    assert after(replace(spoilt, reset_needed=False)) == OK


def test_a_gpu_that_reports_no_sensors_is_healthy() -> None:
    assert after(GpuVitals(0, "GPU-0")) == OK


@given(st.lists(st.sampled_from([SOUND, SAYS_RESET, SAYS_NOTHING_NEEDED, LostGpu(0, "GPU-0"), 79, 13])))
def test_a_sound_reading_after_a_quiet_time_ends_everything(steps: list[GpuVitals | LostGpu | int]) -> None:
    assert after(*steps, SAYS_NOTHING_NEEDED, SAYS_NOTHING_NEEDED, seconds=QUIET_SECONDS) == OK
