"""Without an arbiter each tenant has a slot of every frame, and nobody has two at once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.gpu import Gpu
from milligpu.model.policy import SharePolicy
from milligpu.model.units import Mib, Milli
from milligpu.tenancy.time_slots import divide_frame, pods_frame, sessions_frame
from milligpu.wire.limits import FRAME_US

SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(lambda found: sum(found) <= 1000)


@given(SHARES, st.sampled_from(SharePolicy))
def test_slots_lie_in_the_frame_and_do_not_overlap(shares: list[int], policy: SharePolicy) -> None:
    slots = list(divide_frame([(str(n), Milli(share)) for n, share in enumerate(shares)], policy).values())
    assert all(a.start_us + a.length_us <= b.start_us for a, b in pairwise(slots))
    assert slots[-1].start_us + slots[-1].length_us <= FRAME_US


@given(SHARES, st.sampled_from([SharePolicy.FIXED, SharePolicy.BEST_EFFORT]))
def test_a_slot_is_never_longer_than_the_share(shares: list[int], policy: SharePolicy) -> None:
    slots = divide_frame([(str(n), Milli(share)) for n, share in enumerate(shares)], policy)
    assert [slots[str(n)].length_us for n, share in enumerate(shares) if share] == [
        share * FRAME_US // 1000 for share in shares if share
    ]


def test_a_new_tenant_does_not_move_the_time_slots_of_others() -> None:
    before = divide_frame([("a", Milli(500)), ("b", Milli(200))], SharePolicy.FIXED)
    after = divide_frame([("a", Milli(500)), ("b", Milli(200)), ("c", Milli(300))], SharePolicy.FIXED)
    assert {name: after[name] for name in before} == before


def test_tenants_with_a_share_of_zero_divide_the_rest_of_the_frame() -> None:
    slots = divide_frame([("a", Milli(600)), ("b", Milli(0)), ("c", Milli(0))], SharePolicy.BEST_EFFORT)
    assert slots["b"].length_us == slots["c"].length_us == FRAME_US // 5


def test_the_equal_policy_divides_the_frame_evenly() -> None:
    slots = divide_frame([("a", Milli(900)), ("b", Milli(100))], SharePolicy.EQUAL)
    assert slots["a"].length_us == slots["b"].length_us == FRAME_US // 2


def test_shares_of_a_vgpu_divide_all_of_its_frame() -> None:
    half = Milli(500)
    slots = divide_frame([("a", Milli(300)), ("b", Milli(200))], SharePolicy.FIXED, capacity=half)
    assert [slot.length_us for slot in slots.values()] == [FRAME_US * 3 // 5, FRAME_US * 2 // 5]


@given(st.integers(1, 1000), st.data())
def test_the_parts_of_pods_and_sessions_fill_the_frame_and_never_exceed_the_gpu(
    milli: int, data: st.DataObject
) -> None:
    reserved = data.draw(st.integers(0, milli))
    gpu = Gpu("GPU-a", "T4", Mib(data.draw(st.integers(1, 100_000))), Milli(milli), Milli(reserved))
    assert gpu.allocatable + reserved == gpu.milli
    assert gpu.allocatable_mib + gpu.mib_of(reserved) <= gpu.mib
    rest = sessions_frame(gpu, gpu.allocatable)
    assert pods_frame(gpu).start_us + pods_frame(gpu).length_us == rest.start_us
    assert rest.start_us + rest.length_us == FRAME_US
