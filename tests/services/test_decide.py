"""Stages up and down: no flapping, never outside the limits, and every loan comes back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.gpu_service import LoadTarget, ReplicaRange
from milligpu.model.reasons import ServiceReason
from milligpu.services.decide import ReplicaState, next_replicas, next_share
from milligpu.services.divide import PodWant, divide
from milligpu.services.load import PodLoad
from milligpu.services.updates import ServicePod, UpdateRole, claim, newest_version, roles
from milligpu.services.window import LoadWindow, Needs

GPU = ("n1", "GPU-1")
noise = st.floats(0.8, 1.2)


def follow(loads: list[float], *, low: int, high: int, pods: int = 1) -> list[int]:
    """The share of each second, for a service whose pods run so many requests of 100 for a GPU."""
    window, share, found = LoadWindow(None), low, list[int]()
    for second, load in enumerate(loads):
        window.add(float(second), {"a": PodLoad(0, load)})
        share = next_share(share, window.needs(LoadTarget(running=100), None), pods, low, high)
        found.append(share)
    return found


@given(st.integers(5, 120), st.lists(noise, min_size=100, max_size=160))
def test_a_load_that_varies_by_a_fifth_is_never_a_reason_to_shrink(mean: int, factors: list[float]) -> None:
    shares = follow([mean * each for each in factors], low=10, high=1000)
    assert all(after >= before for before, after in pairwise(shares))


@given(st.integers(30, 90), st.integers(1, 25), st.lists(noise, min_size=150, max_size=180))
def test_after_a_fall_a_share_goes_down_and_at_most_a_little_up_again(
    before: int, after: int, factors: list[float]
) -> None:
    shares = follow([(before if at < 40 else after) * each for at, each in enumerate(factors)], low=10, high=1000)
    downs = [at for at, (one, other) in enumerate(pairwise(shares)) if other < one]
    ups = [at for at, (one, other) in enumerate(pairwise(shares)) if other > one and at > 45]
    assert not downs or not ups or max(downs) < min(ups)


@given(
    st.lists(st.floats(0, 500), min_size=10, max_size=80),
    st.integers(1, 500),
    st.integers(0, 500),
    st.integers(1, 5),
)
def test_a_share_is_never_outside_its_limits(loads: list[float], low: int, more: int, pods: int) -> None:
    assert all(low <= each <= low + more for each in follow(loads, low=low, high=low + more, pods=pods))


def test_a_share_grows_within_two_seconds_and_shrinks_after_thirty() -> None:
    shares = follow([10.0] * 35 + [60.0] * 35 + [10.0] * 40, low=100, high=1000)
    assert shares[34] == 100
    assert shares[36] == 600
    assert (shares[69 + 28], shares[69 + 30]) == (600, 100)


NEEDS = Needs(900.0, 900.0, 900.0, 900.0)


def state(wanted: int, *capacities: int, starting: bool = False) -> ReplicaState:
    return ReplicaState(wanted, starting, capacities, 400, 400)


@pytest.mark.parametrize(
    ("present", "replicas", "count", "reason"),
    [
        (state(2, 400, 400), ReplicaRange(1, 8), 3, ServiceReason.WAITING_FOR_START),
        (state(2, 400, 400, starting=True), ReplicaRange(1, 8), 2, ServiceReason.WAITING_FOR_START),
        (state(2, 400, 400), ReplicaRange(1, 2), 2, ServiceReason.AT_MAXIMUM),
        (state(3, 400, 400, 400), ReplicaRange(1, 8), 3, ServiceReason.AS_NEEDED),
        (state(6, *[400] * 6), ReplicaRange(1, 8), 4, ServiceReason.AS_NEEDED),
        (state(6, *[400] * 5, starting=True), ReplicaRange(1, 8), 6, ServiceReason.AS_NEEDED),
        (state(1, 400), None, 1, ServiceReason.AT_MAXIMUM),
        (state(1, 300), None, 1, ServiceReason.NO_ROOM),
        (state(9, *[400] * 9), ReplicaRange(1, 8), 8, ServiceReason.AS_NEEDED),
    ],
)
def test_replicas_follow_what_the_pods_cannot_be_guaranteed(
    present: ReplicaState, replicas: ReplicaRange | None, count: int, reason: ServiceReason
) -> None:
    found = next_replicas(present, NEEDS, replicas)
    assert (found.replicas, found.reason) == (count, reason)


@given(st.integers(100, 3000), st.lists(noise, min_size=150, max_size=200), st.integers(1, 12))
def test_replicas_that_were_removed_are_not_missed_at_the_same_load(
    mean: int, factors: list[float], begin: int
) -> None:
    window, count, counts = LoadWindow(None), begin, list[int]()
    for second, factor in enumerate(factors):
        window.add(float(second), {"a": PodLoad(0, mean * factor / 10)})
        needs = window.needs(LoadTarget(running=100), None)
        count = next_replicas(state(count, *[400] * count), needs, ReplicaRange(1, 20)).replicas
        counts.append(count)
    downs = [at for at, (one, other) in enumerate(pairwise(counts)) if other < one]
    ups = [at for at, (one, other) in enumerate(pairwise(counts)) if other > one]
    assert not downs or not ups or max(ups) < min(downs)


wants = st.tuples(st.integers(0, 400), st.integers(0, 500), st.integers(0, 500), st.integers(0, 3))


@given(st.integers(-200, 800), st.lists(wants, max_size=6))
def test_a_gpu_is_never_given_twice_and_nobody_loses_what_is_its_own(
    free: int, asked: list[tuple[int, int, int, int]]
) -> None:
    made = [PodWant(f"p{at}", (GPU,), *each) for at, each in enumerate(asked)]
    got = divide({GPU: free}, made)
    assert sum(got.values()) <= max(0, free) + sum(each.present for each in made)
    for each in made:
        assert min(each.own, each.present) <= got[each.uid] <= each.own + each.loan


@given(st.integers(0, 300), st.lists(wants, max_size=6))
def test_a_loan_that_is_called_back_returns(free: int, asked: list[tuple[int, int, int, int]]) -> None:
    made = [PodWant(f"p{at}", (GPU,), present, own, 0) for at, (present, own, _, _) in enumerate(asked)]
    assert all(divide({GPU: free}, made)[each.uid] <= each.own for each in made)


def test_a_pods_own_share_goes_before_the_loan_of_another() -> None:
    borrower, owner = PodWant("a", (GPU,), 700, 200, 500), PodWant("b", (GPU,), 100, 300)
    assert divide({GPU: 0}, [borrower, owner]) == {"a": 500, "b": 300}


def pod(
    uid: str, version: str, number: int, *, ready: bool = True, present: int = 500, fixed: bool = False
) -> ServicePod:
    return ServicePod(uid, version, number, ready, False, (GPU,), present, 500, fixed=fixed)


def shared(*pods: ServicePod, lending: str = "") -> dict[str, int]:
    """Who gets what of a GPU on which others hold 500."""
    found = roles(pods, newest_version(pods, {}))
    made = [
        PodWant(
            each.uid,
            each.gpus,
            each.present,
            *claim(each, found[each.uid], 500, recalled=False, lends=each.uid == lending),
        )
        for each in pods
    ]
    return divide({GPU: 500 - sum(each.present for each in pods)}, made)


def test_an_update_hands_the_guarantee_over_step_by_step() -> None:
    old = pod("old", "1", 1)
    assert shared(old) == {"old": 500}
    assert shared(old, lending="old") == {"old": 0}
    lent = pod("old", "1", 1, present=0)
    loads = pod("new", "2", 2, ready=False)
    assert shared(lent, loads) == {"old": 500, "new": 0}
    takes = pod("new", "2", 2, present=0)
    assert shared(old, takes) == {"old": 0, "new": 500}


def test_a_rollback_goes_the_same_way() -> None:
    """The youngest pod is of the first version again."""
    failed, back = pod("new", "2", 2), pod("back", "1", 3, ready=False, present=0)
    assert shared(failed, back) == {"new": 500, "back": 0}


def test_on_fixed_gpus_both_pods_have_a_half_because_nobody_gets_idle_time() -> None:
    old, new = pod("old", "1", 1, present=0, fixed=True), pod("new", "2", 2, ready=False, fixed=True)
    assert shared(old, new) == {"old": 250, "new": 250}


def test_pods_on_other_gpus_have_no_part_in_an_update() -> None:
    old = pod("old", "1", 1)
    new = ServicePod("new", "2", 2, False, False, (("n1", "GPU-2"),), 500, 500)
    assert set(roles([old, new], "2").values()) == {UpdateRole.NONE}
