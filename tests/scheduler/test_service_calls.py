"""Pods that wait get what services can give back or lend, and nothing is held back for ever."""

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.reservations import RESERVED_S
from milligpu.model.grant import Grant
from milligpu.model.reasons import ServiceReason
from milligpu.scheduler.service_calls import AGAIN_S, CALL_S, ShareCalls
from milligpu.scheduler.service_pods import grant_of
from tests.cluster.test_state import World


def bound(world: World, name: str, milli: int) -> PodEntry:
    """A pod with a tenth of the GPU's memory and this much compute."""
    world.bind(name, 100)
    entry = world.state.entry(f"uid-{name}")
    assert entry is not None
    hold(world, entry, grant_of(entry, milli, milli))
    return entry


def hold(world: World, entry: PodEntry, grant: Grant) -> None:
    entry.grant = grant
    world.state.shares.update(entry)


def setting(loan: int) -> tuple[World, ShareCalls, dict[str, Grant]]:
    """A GPU with a neighbor of 300, and a borrower with a loan on top of 200; it is full with a loan of 500."""
    world = World()
    bound(world, "neighbor", 300)
    borrower = bound(world, "borrower", 200 + loan)
    return world, ShareCalls(world.state, lambda: world.time), {"uid-borrower": grant_of(borrower, 200, 800)}


def test_a_waiting_pod_calls_for_the_loan_that_it_lacks() -> None:
    world, calls, borrowers = setting(500)
    calls.look(borrowers, {})
    assert calls.returning == frozenset()
    world.see("waiting", 400)
    calls.look(borrowers, {})
    assert calls.returning == {"uid-borrower"}
    assert world.free() == 0, "to look changes nothing"


def test_a_pod_that_fits_or_would_not_fit_even_then_calls_for_nothing() -> None:
    world, calls, borrowers = setting(300)
    world.see("small", 200)
    world.see("large", 600)
    calls.look(borrowers, {})
    assert calls.calls == {}


def test_what_was_given_is_reserved_for_the_pod_that_it_was_given_for() -> None:
    world, calls, borrowers = setting(500)
    world.see("waiting", 400)
    calls.look(borrowers, {})
    entry = world.state.entry("uid-borrower")
    assert entry is not None
    hold(world, entry, borrowers["uid-borrower"])
    calls.hand_over()
    waiting = world.state.entry("uid-waiting")
    assert waiting is not None
    assert waiting.stage is PodStage.RESERVED
    assert world.free() == 100
    calls.look({}, {})
    assert calls.calls == {}, "it has its place"

    # kube-scheduler is told again until the pod is bound: it may have looked before the slots were reported.
    world.state.reservations.inherited.clear()
    world.time += 3
    calls.hand_over()
    assert world.state.reservations.inherited == [waiting]

    # It does not use the place: others may borrow again for a while.
    world.time += RESERVED_S
    world.state.expire()
    assert waiting.stage is PodStage.WAITING
    hold(world, entry, grant_of(entry, 700, 800))
    calls.look(borrowers, {})
    assert calls.calls == {}


def test_a_pod_that_something_else_keeps_from_starting_holds_shares_back_for_a_while_only() -> None:
    world, calls, borrowers = setting(500)
    world.see("waiting", 400)
    calls.look(borrowers, {})
    world.time += CALL_S + 1
    calls.look(borrowers, {})
    assert calls.calls == {}
    world.time += AGAIN_S / 2
    calls.look(borrowers, {})
    assert calls.calls == {}
    world.time += AGAIN_S
    calls.look(borrowers, {})
    assert calls.returning == {"uid-borrower"}


def test_only_old_pods_of_its_own_service_lend_to_a_new_pod() -> None:
    world = World()
    old, calls = bound(world, "old", 600), ShareCalls(world.state, lambda: world.time)
    bound(world, "neighbor", 400)
    lends = {"uid-old": grant_of(old, 0, 600)}
    world.see("new", 600)
    world.see("stranger", 600)
    calls.look({}, {"uid-new": lends})
    assert calls.calls.keys() == {"uid-new"}
    assert calls.lending == {"uid-old"}


def test_a_new_pod_for_which_no_old_pod_has_enough_has_no_place() -> None:
    world = World()
    old, calls = bound(world, "old", 300), ShareCalls(world.state, lambda: world.time)
    bound(world, "neighbor", 700)
    world.see("new", 600)
    calls.look({}, {"uid-new": {"uid-old": grant_of(old, 0, 600)}})
    assert calls.calls == {}
    assert calls.problems["uid-new"][0] is ServiceReason.NO_ROOM
