"""What faults do to a card's condition, and what is refused as one."""

import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.xid import APPLICATION_XIDS
from milligpu.softgpu.faults import EVENT_ECC, EVENT_LOOK, EVENT_XID, Condition, Fault, Throttle, parse_fault


def test_each_fault_raises_its_events() -> None:
    condition = Condition()
    assert condition.apply(Fault(xid=13)) == [(EVENT_XID, 13)]
    assert condition.apply(Fault(ecc=2)) == [(EVENT_ECC, 0), (EVENT_XID, 48)]
    assert condition.apply(Fault(lost=True)) == [(EVENT_XID, 79), (EVENT_LOOK, 0)]
    assert condition.apply(Fault(temperature=95, throttle=Throttle.POWER)) == []
    assert condition.lost


@pytest.mark.parametrize("xid", [*sorted(APPLICATION_XIDS), 79])
def test_only_the_cards_own_errors_ask_for_a_reset(xid: int) -> None:
    condition = Condition()
    condition.apply(Fault(xid=xid))
    assert condition.reset_needed == (xid == 79)


def test_clearing_heals_everything_but_the_count_of_a_life() -> None:
    condition = Condition()
    condition.apply(Fault(ecc=2, temperature=95, throttle=Throttle.THERMAL, lost=True))
    assert condition.apply(Fault(clear=True)) == [(EVENT_LOOK, 0)]
    assert condition == Condition(ecc_aggregate=[0, 2])


def test_a_request_is_read_into_a_fault() -> None:
    raw = {"xid": "79", "temperature": 95, "throttle": "power-brake", "lost": True}
    assert parse_fault(raw) == Fault(xid=79, temperature=95, throttle=Throttle.POWER_BRAKE, lost=True)


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
def test_anything_else_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        parse_fault(raw)
