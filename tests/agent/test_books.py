"""Who gets what on one machine: never more than a card has, and one policy per card."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.agent.books import CONTAINER, Books, Held
from milligpu.agent.wish import Wish, describe_share
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant, NoFit
from milligpu.model.qos import Policy
from milligpu.model.reasons import Reason
from milligpu.model.request import ShareRequest
from milligpu.model.units import Mib, Milli

CARDS = [Gpu(f"GPU-{n}", "A10", Mib(10_000)) for n in range(2)]
BOOKS = Books("here", CARDS)


def part(milli: int, mib: int | None = None, count: int = 1) -> ShareRequest:
    return ShareRequest(count, Milli(milli), None if mib is None else Mib(mib))


def granted(session: str, wish: Wish, held: list[Held]) -> Held:
    answer = BOOKS.decide(session, wish, held)
    assert isinstance(answer, Grant), answer
    return Held(session, answer)


def refused(wish: Wish, held: list[Held]) -> set[Reason]:
    answer = BOOKS.decide("x", wish, held)
    assert isinstance(answer, NoFit)
    return {refusal.reason for refusal in answer.refusals}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10_000), st.integers(1, 2)), max_size=12))
def test_no_card_is_given_out_twice(wishes: list[tuple[int, int, int]]) -> None:
    held: list[Held] = []
    for number, (milli, mib, count) in enumerate(wishes):
        answer = BOOKS.decide(str(number), Wish(part(milli, mib, count=count)), held)
        if isinstance(answer, Grant):
            held.append(Held(str(number), answer))
    for card in CARDS:
        shares = [share for each in held for share in each.shares if share.gpu == card.uuid]
        assert sum(share.milli for share in shares) <= 1000
        assert sum(share.mib for share in shares) <= card.mib


def test_a_whole_gpu_is_nobody_elses() -> None:
    held = [granted("a", Wish(part(1000)), [])]
    assert held[0].shares[0].whole
    other = granted("b", Wish(part(1)), held)
    assert other.shares[0].gpu != held[0].shares[0].gpu
    assert refused(Wish(part(1000)), [*held, other]) == {Reason.INSUFFICIENT_CORE}


def test_memory_alone_can_be_what_is_short() -> None:
    held = [granted(str(n), Wish(part(1, 9_000)), []) for n in range(1)]
    held.append(granted("b", Wish(part(1, 9_000)), held))
    assert refused(Wish(part(100, 2_000)), held) == {Reason.INSUFFICIENT_MEMORY}


def test_the_first_on_a_card_sets_its_policy_and_another_goes_elsewhere() -> None:
    first = granted("a", Wish(part(100), Policy.BEST_EFFORT), [])
    second = granted("b", Wish(part(100), Policy.EQUAL), [first])
    assert first.grant.gpus != second.grant.gpus
    assert refused(Wish(part(100), Policy.FIXED), [first, second]) == {Reason.POLICY_MISMATCH}
    third = granted("c", Wish(part(100)), [first, second])
    assert third.grant.policy in (Policy.BEST_EFFORT, Policy.EQUAL)


def test_a_policy_that_is_not_there_now_is_not_hopeless() -> None:
    assert BOOKS.hopeless("x", Wish(part(100), Policy.EQUAL)) is None
    assert BOOKS.hopeless("x", Wish(part(1, 10_001))) is not None
    assert BOOKS.hopeless("x", Wish(part(500, count=3))) is not None


def test_a_resize_stays_on_its_card_and_counts_itself_only_once() -> None:
    first = granted("a", Wish(part(600)), [])
    second = granted("b", Wish(part(300)), [first])
    assert first.grant.gpus == second.grant.gpus
    bigger = BOOKS.resize(second, Wish(part(400)), [first, second])
    assert isinstance(bigger, Grant)
    assert (bigger.gpus, bigger.generation) == (second.grant.gpus, 2)
    assert bigger.containers[CONTAINER][0].milli == 400
    assert isinstance(BOOKS.resize(second, Wish(part(401)), [first, second]), NoFit)


def test_a_resize_keeps_the_order_of_several_gpus() -> None:
    present = granted("a", Wish(part(200, count=2)), [])
    turned = replace(present.grant, containers={CONTAINER: present.shares[::-1]})
    answer = BOOKS.resize(Held("a", turned), Wish(part(300, count=2)), [])
    assert isinstance(answer, Grant)
    assert answer.gpus == turned.gpus


def test_a_session_on_a_card_that_is_gone_stops_nobody() -> None:
    gone = replace(granted("a", Wish(part(500)), []).shares[0], gpu="GPU-gone")
    held = Held("a", Grant("a", "here", {CONTAINER: (gone,)}))
    assert isinstance(BOOKS.decide("b", Wish(part(1000)), [held]), Grant)


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
def test_a_share_is_said_as_people_say_it(share: ShareRequest, text: str) -> None:
    assert describe_share(share) == text
