"""What faults do to a GPU's state, and which requests are refused."""

import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.xid import APPLICATION_XIDS
from milligpu.softgpu.faults import (
    EVENT_CHECK,
    EVENT_ECC,
    EVENT_XID,
    Fault,
    FaultState,
    InjectedThrottle,
    parse_fault,
)


def test_each_fault_raises_its_events() -> None:
    state = FaultState()
    assert state.apply(Fault(xid=13)) == [(EVENT_XID, 13)]
    assert state.apply(Fault(ecc=2)) == [(EVENT_ECC, 0), (EVENT_XID, 48)]
    assert state.apply(Fault(lost=True)) == [(EVENT_XID, 79), (EVENT_CHECK, 0)]
    assert state.apply(Fault(temperature=95, throttle=InjectedThrottle.POWER)) == []
    assert state.lost


@pytest.mark.parametrize("xid", [*sorted(APPLICATION_XIDS), 79])
def test_only_errors_of_the_gpu_itself_require_a_reset(xid: int) -> None:
    state = FaultState()
    state.apply(Fault(xid=xid))
    assert state.reset_needed == (xid == 79)


def test_clear_resets_everything_but_the_lifetime_error_count() -> None:
    state = FaultState()
    state.apply(Fault(ecc=2, temperature=95, throttle=InjectedThrottle.THERMAL, lost=True))
    assert state.apply(Fault(clear=True)) == [(EVENT_CHECK, 0)]
    assert state == FaultState(ecc_aggregate=[0, 2])


def test_a_valid_request_is_parsed_into_a_fault() -> None:
    raw = {"xid": "79", "temperature": 95, "throttle": "power-brake", "lost": True}
    assert parse_fault(raw) == Fault(xid=79, temperature=95, throttle=InjectedThrottle.POWER_BRAKE, lost=True)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"xid": 0},
        {"xid": "abc"},
        {"ecc": -1},
        {"temperature": 1000},
        {"throttle": "mood"},
        {"colour": 1},
        {"xid": 1.5},
    ],
)
def test_an_invalid_fault_request_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        parse_fault(raw)
