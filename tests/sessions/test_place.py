"""Placement of sessions: no GPU is over-committed, and each GPU has one share policy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant, NoFit
from milligpu.model.policy import SharePolicy
from milligpu.model.reasons import Reason
from milligpu.model.request import ShareRequest, describe_share
from milligpu.model.units import Mib, Milli
from milligpu.sessions.place import CONTAINER, SessionPlacer
from milligpu.sessions.request import SessionRequest
from milligpu.tenancy.time_slots import TimeSlot

GPUS = [Gpu(f"GPU-{n}", "A10", Mib(10_000)) for n in range(2)]
PLACER = SessionPlacer("here", GPUS)


def part(milli: int, mib: int | None = None, count: int = 1) -> ShareRequest:
    return ShareRequest(count, Milli(milli), None if mib is None else Mib(mib))


def grant(session: str, request: SessionRequest, grants: dict[str, Grant]) -> Grant:
    answer = PLACER.decide(session, request, grants)
    assert isinstance(answer, Grant), answer
    return answer


def refused(request: SessionRequest, grants: dict[str, Grant]) -> set[Reason]:
    answer = PLACER.decide("x", request, grants)
    assert isinstance(answer, NoFit)
    return {refusal.reason for refusal in answer.refusals}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10_000), st.integers(1, 2)), max_size=12))
def test_no_gpu_is_over_committed(requests: list[tuple[int, int, int]]) -> None:
    grants: dict[str, Grant] = {}
    for number, (milli, mib, count) in enumerate(requests):
        answer = PLACER.decide(str(number), SessionRequest(part(milli, mib, count=count)), grants)
        if isinstance(answer, Grant):
            grants[str(number)] = answer
    for gpu in GPUS:
        shares = [
            held.share for each in grants.values() for held in each.containers[CONTAINER] if held.gpu == gpu.uuid
        ]
        assert sum(share.milli for share in shares) <= 1000
        assert sum(share.mib for share in shares) <= gpu.mib


def test_a_whole_gpu_is_granted_to_one_session_only() -> None:
    first = grant("a", SessionRequest(part(1000)), {})
    assert first.containers[CONTAINER][0].share.whole
    second = grant("b", SessionRequest(part(1)), {"a": first})
    assert second.gpus != first.gpus
    assert refused(SessionRequest(part(1000)), {"a": first, "b": second}) == {Reason.INSUFFICIENT_CORE}


def test_sessions_divide_all_the_time_of_a_vgpu() -> None:
    placer = SessionPlacer("here", [Gpu("GPU-v", "V100-8Q", Mib(8_000), Milli(500))])
    grants: dict[str, Grant] = {}
    for session, milli in (("a", 300), ("b", 200)):
        answer = placer.decide(session, SessionRequest(part(milli)), grants)
        assert isinstance(answer, Grant)
        grants[session] = answer
    slots = placer.time_slots(grants)
    assert [slots[name]["GPU-v"] for name in "ab"] == [TimeSlot(0, 60_000), TimeSlot(60_000, 40_000)]


def test_a_request_is_refused_when_only_memory_is_missing() -> None:
    first = grant("a", SessionRequest(part(1, 9_000)), {})
    second = grant("b", SessionRequest(part(1, 9_000)), {"a": first})
    grants = {"a": first, "b": second}
    assert refused(SessionRequest(part(100, 2_000)), grants) == {Reason.INSUFFICIENT_MEMORY}


def test_a_session_that_wants_equal_parts_makes_an_idle_gpu_equal_while_it_is_there() -> None:
    first = grant("a", SessionRequest(part(100), SharePolicy.FIXED), {})
    second = grant("b", SessionRequest(part(100), SharePolicy.EQUAL), {"a": first})
    grants = {"a": first, "b": second}
    assert first.gpus != second.gpus, "a GPU that somebody is on stays as it is"
    policies = {uuid: gpu.policy for uuid, gpu in PLACER.gpus_with_policy(grants).items()}
    assert policies == {first.gpus[0]: SharePolicy.BEST_EFFORT, second.gpus[0]: SharePolicy.EQUAL}
    assert grant("c", SessionRequest(part(900), SharePolicy.FIXED), grants).gpus == first.gpus
    full = grant("d", SessionRequest(part(900)), grants)
    wants_share = SessionRequest(part(500), SharePolicy.BEST_EFFORT)
    assert full.gpus == first.gpus
    assert Reason.POLICY_MISMATCH in refused(wants_share, {**grants, "d": full})
    assert {gpu.policy for gpu in PLACER.gpus_with_policy({"a": first}).values()} == {SharePolicy.BEST_EFFORT}


@pytest.mark.parametrize(
    ("policy", "limit", "granted"),
    [
        (None, None, 300),
        (None, 600, 600),
        (SharePolicy.FIXED, None, 300),
        (SharePolicy.BEST_EFFORT, None, 1000),
        (SharePolicy.BEST_EFFORT, 600, 600),
        (SharePolicy.EQUAL, None, 1000),
    ],
)
def test_the_limit_of_a_session_follows_from_what_it_names(
    policy: SharePolicy | None, limit: int | None, granted: int
) -> None:
    share = ShareRequest(milli=Milli(300), limit=None if limit is None else Milli(limit))
    found = grant("a", SessionRequest(share, policy), {}).containers[CONTAINER][0].share
    assert (found.milli, found.limit) == (300, granted)


def test_the_policy_of_a_nodes_gpu_is_the_admins() -> None:
    gpus = [replace(gpu, policy=SharePolicy.FIXED) for gpu in GPUS]
    placer = SessionPlacer("node", gpus, {})
    answer = placer.decide("a", SessionRequest(part(100), SharePolicy.EQUAL), {})
    assert isinstance(answer, NoFit)
    assert {refusal.reason for refusal in answer.refusals} == {Reason.POLICY_MISMATCH}


def test_only_a_request_that_never_fits_is_hopeless() -> None:
    assert PLACER.never_fits("x", SessionRequest(part(100), SharePolicy.EQUAL)) is None
    assert PLACER.never_fits("x", SessionRequest(part(1, 10_001))) is not None
    assert PLACER.never_fits("x", SessionRequest(part(500, count=3))) is not None


def test_a_resize_stays_on_its_gpu_and_counts_itself_only_once() -> None:
    first = grant("a", SessionRequest(part(600)), {})
    second = grant("b", SessionRequest(part(300)), {"a": first})
    grants = {"a": first, "b": second}
    assert first.gpus == second.gpus
    bigger = PLACER.resize("b", second, SessionRequest(part(400)), grants)
    assert isinstance(bigger, Grant)
    assert (bigger.gpus, bigger.generation) == (second.gpus, 2)
    assert bigger.containers[CONTAINER][0].share.milli == 400
    assert isinstance(PLACER.resize("b", second, SessionRequest(part(401)), grants), NoFit)


def test_a_resize_keeps_the_order_of_several_gpus() -> None:
    present = grant("a", SessionRequest(part(200, count=2)), {})
    turned = replace(present, containers={CONTAINER: present.containers[CONTAINER][::-1]})
    answer = PLACER.resize("a", turned, SessionRequest(part(300, count=2)), {})
    assert isinstance(answer, Grant)
    assert answer.gpus == turned.gpus


def test_a_session_on_a_gpu_that_is_gone_takes_nothing() -> None:
    gone = replace(grant("a", SessionRequest(part(500)), {}).containers[CONTAINER][0], gpu="GPU-gone")
    grants = {"a": Grant("a", "here", {CONTAINER: (gone,)})}
    assert isinstance(PLACER.decide("b", SessionRequest(part(1000)), grants), Grant)


def test_sessions_on_a_node_get_what_pods_leave() -> None:
    pods = {gpu.uuid: GpuDemand(Milli(600), Mib(6_000)) for gpu in GPUS}
    placer = SessionPlacer("node", GPUS, pods)
    first = placer.decide("a", SessionRequest(part(400, 4_000)), {})
    assert isinstance(first, Grant)
    assert isinstance(placer.decide("b", SessionRequest(part(401)), {}), NoFit)
    assert isinstance(placer.decide("b", SessionRequest(part(1000)), {}), NoFit), "a GPU with pods is not whole"
    (gpu,) = first.gpus
    assert placer.free(placer.gpus[gpu], {"a": first}) == GpuDemand(Milli(0), Mib(0))
    slot = placer.time_slots({"a": first})["a"][gpu]
    assert (slot.start_us, slot.length_us) == (60_000, 40_000), "after the pods' part of the frame"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (part(500), "0.5 GPU"),
        (part(1000), "a whole GPU"),
        (part(1000, count=2), "2 whole GPUs"),
        (part(250, 2048, count=2), "2 x 0.25 GPU with 2Gi"),
        (ShareRequest(mib=Mib(100)), "100Mi"),
    ],
)
def test_a_share_is_described_as_people_say_it(share: ShareRequest, text: str) -> None:
    assert describe_share(share) == text
