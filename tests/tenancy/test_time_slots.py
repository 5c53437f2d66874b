"""Without an arbiter each tenant has a slot of every frame, and nobody has two at once."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from milligpu.agent.slots import back, divide, front
from milligpu.model.gpu import Gpu
from milligpu.model.qos import Policy
from milligpu.model.units import Mib, Milli
from milligpu.wire.limits import FRAME_US

SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(lambda found: sum(found) <= 1000)


@given(SHARES, st.sampled_from(Policy))
def test_slots_lie_in_the_frame_and_do_not_overlap(shares: list[int], policy: Policy) -> None:
    slots = list(divide([(str(n), Milli(share)) for n, share in enumerate(shares)], policy).values())
    assert all(a.start_us + a.length_us <= b.start_us for a, b in pairwise(slots))
    assert slots[-1].start_us + slots[-1].length_us <= FRAME_US


@given(SHARES, st.sampled_from([Policy.FIXED, Policy.BEST_EFFORT]))
def test_a_slot_is_never_longer_than_the_share(shares: list[int], policy: Policy) -> None:
    slots = divide([(str(n), Milli(share)) for n, share in enumerate(shares)], policy)
    assert [slots[str(n)].length_us for n, share in enumerate(shares) if share] == [
        share * FRAME_US // 1000 for share in shares if share
    ]


def test_a_newcomer_moves_nobody() -> None:
    before = divide([("a", Milli(500)), ("b", Milli(200))], Policy.FIXED)
    after = divide([("a", Milli(500)), ("b", Milli(200)), ("c", Milli(300))], Policy.FIXED)
    assert {name: after[name] for name in before} == before


def test_those_without_a_guarantee_divide_what_is_left() -> None:
    slots = divide([("a", Milli(600)), ("b", Milli(0)), ("c", Milli(0))], Policy.BEST_EFFORT)
    assert slots["b"].length_us == slots["c"].length_us == FRAME_US // 5


def test_equal_share_divides_evenly_whatever_was_asked() -> None:
    slots = divide([("a", Milli(900)), ("b", Milli(100))], Policy.EQUAL)
    assert slots["a"].length_us == slots["b"].length_us == FRAME_US // 2


@given(st.integers(1, 1000), st.data())
def test_what_is_set_aside_and_the_rest_never_exceed_the_card(milli: int, data: st.DataObject) -> None:
    reserved = data.draw(st.integers(0, milli))
    gpu = Gpu("GPU-a", "T4", Mib(data.draw(st.integers(1, 100_000))), Milli(milli), Milli(reserved))
    other = replace(gpu, reserved=gpu.usable)
    assert gpu.usable + other.usable == gpu.milli
    assert gpu.usable_mib + other.usable_mib <= gpu.mib
    assert front(gpu).start_us + front(gpu).length_us == back(other).start_us
    assert back(other).start_us + back(other).length_us == FRAME_US
