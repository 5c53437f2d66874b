"""The judge of `bench.chaos` sees what it is there to see, and its script is the same for the same seed."""

from dataclasses import replace

from bench.chaos.observe import Asked, Book, Held, OnNode, Share, Truth, common
from bench.chaos.script import Manner, Part, Script
from bench.chaos.verdict import (
    Cards,
    Wanted,
    died_of_us,
    granted_twice,
    granted_twice_in_api,
    is_cut_off,
    may_be_stranded,
    unsettled,
)
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.units import Mib, Milli

CARDS = Cards([Gpu("GPU-0", "A100", Mib(1000)), Gpu("GPU-1", "A100", Mib(1000))])


def granted(uid: str, milli: int, gpu: str = "GPU-0") -> Grant:
    return Grant(uid, "n1", {"main": (GpuShare(gpu, Milli(milli), Mib(milli), Milli(milli)),)})


def held(uid: str, milli: int, *, book: str = "", lost: bool = False) -> Held:
    shares: tuple[Share, ...] = (("GPU-0", milli, milli),) if book else ()
    return Held(uid, frozenset({0}), book, lost, shares)


def running(name: str, milli: int) -> tuple[Asked, str, Book, Held]:
    """A pod that has what it should have, by every account."""
    grant = granted(name, milli)
    pod = Asked(name, name, "Running", "n1", grant=grant, running=True)
    return pod, f"b-{name}", Book(name, grant), held(name, milli, book=f"b-{name}")


def truth(*pods: tuple[Asked, str, Book, Held]) -> Truth:
    names = frozenset(name for _, name, _, _ in pods)
    books = {name: book for _, name, book, _ in pods}
    node = OnNode(books, names, names, frozenset(each for _, _, _, each in pods))
    return Truth(tuple(pod for pod, _, _, _ in pods), node, {"bound": len(pods)})


def judged(found: Truth, *sizes: int, fits: bool = False) -> list[str]:
    wanted = {f"pod-{number}": Wanted(Manner.STAYS, (size,)) for number, size in enumerate(sizes)}
    return unsettled(wanted, found, CARDS, lambda _uid: fits)


def test_nothing_is_wrong_where_all_accounts_agree() -> None:
    assert judged(truth(running("pod-0", 600), running("pod-1", 400)), 600, 400) == []


def test_processes_with_more_than_a_card_are_seen_whatever_the_books_say() -> None:
    both = [held("a", 600, book="x"), held("b", 600, book="y")]
    assert len(granted_twice(CARDS, OnNode(held=frozenset(both)))) == 1
    whole = [held("a", 1000), held("b", 100, book="y")]
    assert len(granted_twice(CARDS, OnNode(held=frozenset(whole)))) == 1
    assert granted_twice(CARDS, OnNode(held=frozenset(both[:1]))) == []


def test_books_and_grants_with_more_than_a_card_are_seen() -> None:
    books = {uid: Book(uid, granted(uid, 600)) for uid in ("a", "b")}
    assert len(granted_twice(CARDS, OnNode(books=books))) == 1
    pods = [Asked(uid, uid, "Running", "n1", grant=granted(uid, 600)) for uid in ("a", "b")]
    assert len(granted_twice_in_api(CARDS, pods)) == 1
    assert granted_twice_in_api(CARDS, [pods[0], replace(pods[1], phase="Failed")]) == []


def test_what_came_after_the_other_went_was_not_there_together() -> None:
    before, after = (
        OnNode(held=frozenset({held("a", 600, book="x")})),
        OnNode(held=frozenset({held("b", 600, book="y")})),
    )
    assert granted_twice(CARDS, common(before, after)) == []


def test_a_process_whose_share_was_forgotten_is_seen() -> None:
    assert (
        "nobody remembers" in granted_twice(CARDS, OnNode(held=frozenset({held("a", 1, book="x", lost=True)})))[0]
    )


def test_another_page_another_grant_or_no_file_is_not_rest() -> None:
    pod, name, book, has = running("pod-0", 600)
    assert judged(truth((pod, name, book, replace(has, shares=(("GPU-0", 500, 600),)))), 600) != []
    assert judged(truth((pod, name, replace(book, grant=granted("pod-0", 500)), has)), 600) != []
    assert judged(truth((pod, name, book, replace(has, cards=frozenset({1})))), 600) != []
    found = truth((pod, name, book, has))
    assert judged(replace(found, node=replace(found.node, files=frozenset())), 600) != []
    assert judged(replace(found, stages={"bound": 2}), 600) != []


def test_what_is_kept_or_runs_for_a_pod_that_is_gone_is_not_rest() -> None:
    found = truth(running("pod-0", 600))
    assert len(judged(replace(found, pods=(), stages={"bound": 0}))) == 2


def test_a_pod_may_wait_only_while_there_is_no_room() -> None:
    found = Truth((Asked("pod-0", "u", "Pending"),), OnNode(), {})
    assert judged(found, 600) == []
    assert judged(found, 600, fits=True) == ["pod-0: waits, though there is room"]


def test_a_resize_may_wait_only_while_there_is_no_room() -> None:
    wanted = {"pod-0": Wanted(Manner.STAYS, (600, 700)), "pod-1": Wanted(Manner.STAYS, (400,))}
    full = truth(running("pod-0", 600), running("pod-1", 400))
    assert unsettled(wanted, full, CARDS, lambda _uid: False) == []
    del wanted["pod-1"]
    assert "though there is room" in unsettled(wanted, truth(running("pod-0", 600)), CARDS, lambda _uid: False)[0]


def test_who_died_of_us_is_told_from_who_was_rejected_or_lost() -> None:
    pod = Asked("pod-0", "u", "Failed")
    assert died_of_us(pod, lost=False)
    assert not died_of_us(pod, lost=True)
    assert not died_of_us(replace(pod, reason="UnexpectedAdmissionError"), lost=False)
    assert died_of_us(Asked("pod-0", "u", "Running", ends=(("StartError", 128, "no such file"),)), lost=True)
    assert died_of_us(Asked("pod-0", "u", "Running", ends=(("Error", 1, ""),)), lost=True)
    assert not died_of_us(Asked("pod-0", "u", "Running", ends=(("Error", 137, ""),)), lost=False)


def test_a_start_that_the_killed_kubelet_cut_off_is_not_blamed_on_us() -> None:
    cut_off = ("StartError", 128, 'failed to start containerd task "x": context canceled')
    once, twice = Asked("pod-0", "u", "Running", ends=(cut_off,)), (cut_off, ("Error", 1, ""))
    assert is_cut_off(cut_off)
    assert not is_cut_off(twice[1])
    assert died_of_us(once, lost=False)
    assert not died_of_us(once, lost=False, cut_off=[cut_off])
    assert not died_of_us(replace(once, phase="Failed"), lost=False, cut_off=[cut_off])
    assert died_of_us(replace(once, ends=twice), lost=False, cut_off=[cut_off])


def test_only_a_pod_that_is_started_once_and_never_was_may_be_stranded() -> None:
    once = Wanted(Manner.ONCE, (300,))
    pod = Asked("pod-0", "u", "Pending", node="n1", waiting="ContainerCreating")
    assert may_be_stranded(once, pod)
    assert not may_be_stranded(Wanted(Manner.STAYS, (300,)), pod)
    assert not may_be_stranded(once, replace(pod, node=""))
    assert not may_be_stranded(once, replace(pod, phase="Running"))
    assert not may_be_stranded(once, replace(pod, ends=(("Error", 137, ""),)))


def test_the_same_seed_hurts_in_the_same_way() -> None:
    assert list(Script(7).rounds(50)) == list(Script(7).rounds(50))
    assert {part for each in Script(7).rounds(50) for part in each.parts} == set(Part)
