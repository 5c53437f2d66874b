"""The books follow the cluster: promises end, bound pods hold what their grants say, and nothing is given twice."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu import dialects
from milligpu.kube import objects
from milligpu.model.errors import NoCapacity
from milligpu.model.grant import Grant
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.books import DOUBT_S, RESERVED_S, Books, Stage
from milligpu.scheduler.eligible import Constraints, Expression, Place, Term, Toleration
from milligpu.scheduler.explain import explain
from milligpu.scheduler.sight import NodeReader, PodReader, PodSight
from tests.scheduler.objects import node, pod


class World:
    """Books, their readers and a clock."""

    def __init__(self, nodes: int = 1, cards: int = 1) -> None:
        self.time = 0.0
        self.books = Books(Placer(Snapshot()), lambda: self.time)
        self.pods = PodReader(dialects.read)
        self.nodes = NodeReader()
        self.names = [f"n{at}" for at in range(nodes)]
        for name in self.names:
            self.put_node(node(name, cards))

    def put_node(self, found: objects.Node) -> None:
        sight = self.nodes.sight(found)
        if sight is not None:
            self.books.put_node(sight)

    def sight(self, name: str, milli: int, grant: Grant | None = None, **more: str) -> PodSight:
        notes = {"milligpu.dev/resize": more["resize"]} if "resize" in more else None
        phase, nominated = more.get("phase", "Pending"), more.get("nominated", "")
        found = pod(name, milli, grant=grant, phase=phase, nominated=nominated, notes=notes)
        return self.pods.sight(objects.decode_pod(json.dumps(found).encode()))

    def see(self, name: str, milli: int, grant: Grant | None = None, **more: str) -> PodSight:
        sight = self.sight(name, milli, grant, **more)
        self.books.put_pod(sight)
        return sight

    def free(self, name: str = "n0") -> int:
        snap = self.books.placer.snapshot
        return int(snap.milli[snap.cell_of[name, f"GPU-{name}-0"]])

    def bind(self, name: str, milli: int) -> Grant:
        wish = self.see(name, milli).wish
        grant = self.books.begin_bind(wish, "n0")
        assert grant is not None
        self.books.end_bind(wish.pod.uid, bound=True)
        return grant


def test_a_reservation_that_no_bind_follows_ends() -> None:
    world = World()
    assert world.books.reserve(world.see("a", 600).wish, ["n0"]) is not None
    assert world.free() == 400
    world.time += RESERVED_S
    world.books.expire()
    assert world.free() == 1000


def test_a_pod_that_goes_gives_back_what_it_held() -> None:
    world = World()
    world.bind("a", 600)
    world.books.drop_pod("uid-a")
    assert world.free() == 1000


def test_a_pod_that_ended_holds_nothing() -> None:
    world = World()
    grant = world.bind("a", 600)
    world.see("a", 600, grant, phase="Succeeded")
    assert world.free() == 1000


def test_an_old_sight_of_a_bound_pod_does_not_unbind_it() -> None:
    world = World()
    world.bind("a", 600)
    world.see("a", 600)
    assert world.free() == 400


def test_a_bind_without_an_answer_keeps_its_place_until_it_is_settled() -> None:
    world = World()
    wish = world.see("a", 600).wish
    world.books.begin_bind(wish, "n0")
    world.books.doubt_bind("uid-a")
    world.books.found_unbound("uid-a")
    assert world.free() == 400, "the request may still be under way"
    with pytest.raises(NoCapacity, match="not known yet"):
        world.books.reserve(wish, ["elsewhere"])
    world.time += DOUBT_S
    world.books.found_unbound("uid-a")
    assert world.free() == 1000


def test_a_doubtful_bind_may_be_repeated_on_the_same_node() -> None:
    world = World()
    wish = world.see("a", 600).wish
    first = world.books.begin_bind(wish, "n0")
    world.books.doubt_bind("uid-a")
    assert world.books.begin_bind(wish, "n0") == first


def test_a_restart_rebuilds_the_same_books_from_the_cluster() -> None:
    world = World()
    grant = world.bind("a", 600)
    again = World(nodes=0)
    again.see("a", 600, grant)
    again.put_node(node("n0", 1))
    assert again.free() == 400
    assert again.books.reserve(again.see("b", 600).wish, ["n0"]) is None


def test_promises_give_way_to_a_pod_that_somebody_else_bound() -> None:
    world = World()
    world.books.reserve(world.see("mine", 600).wish, ["n0"])
    theirs = Grant("uid-theirs", "n0", World().bind("x", 600).containers)
    world.see("theirs", 600, theirs)
    mine = world.books.entry("uid-mine")
    assert mine is not None
    assert mine.stage is Stage.WAITING
    assert world.free() == 400


def test_a_node_that_changes_keeps_what_is_bound_and_forgets_promises() -> None:
    world = World()
    world.bind("a", 300)
    world.books.reserve(world.see("b", 300).wish, ["n0"])
    world.put_node(node("n0", 2))
    assert world.free() == 700


def test_a_nomination_that_kube_scheduler_takes_away_is_taken_back() -> None:
    world = World()
    world.see("a", 600)
    (entry,) = world.books.waiting()
    world.books.nominate(entry)
    world.see("a", 600, nominated="n0")
    assert world.free() == 400
    world.see("a", 600)
    assert world.free() == 1000
    assert entry.refused_at == world.time


_millis = st.sampled_from([200, 300, 600, 1000])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from("rcbdgxte"), _millis), max_size=60))
def test_whatever_happens_no_card_is_promised_twice_and_nothing_leaks(steps: list[tuple[int, str, int]]) -> None:
    world = World(nodes=2, cards=2)
    for number, step, milli in steps:
        _act(world, f"p{number}", step, milli)
        snap = world.books.placer.snapshot
        assert (snap.milli >= 0).all()
        assert (snap.mib >= 0).all()
    for number in range(8):
        world.books.drop_pod(f"uid-p{number}")
    assert not world.books.placer.snapshot.holdings
    assert world.books.waiting() == []
    assert [world.free(name) for name in world.names] == [1000, 1000]


def _act(world: World, name: str, step: str, milli: int) -> None:
    books, uid = world.books, f"uid-{name}"
    entry = books.entry(uid)
    wish = entry.wish if entry is not None else world.see(name, milli).wish
    stage = entry.stage if entry is not None else Stage.WAITING
    with suppress(NoCapacity):
        match step:
            case "r":
                books.reserve(wish, world.names)
            case "c" if stage is Stage.WAITING and entry is not None:
                books.nominate(entry)
            case "b":
                books.begin_bind(wish, world.names[milli % 2])
            case "d":
                books.doubt_bind(uid)
            case "g":
                books.end_bind(uid, bound=milli != 600)
            case "x":
                books.drop_pod(uid)
            case "t":
                world.time += milli / 10
                books.expire()
            case _:
                books.found_unbound(uid)


# -- conditions ------------------------------------------------------------------------------------------------

HERE = Place("n1", {"zone": "a", "size": "7"}, (objects.Taint("gpu", "NoSchedule", "yes"),))
OPEN = Constraints(tolerations=(Toleration("gpu", "Exists"),))


@pytest.mark.parametrize(
    ("constraints", "admits"),
    [
        (Constraints(), False),
        (OPEN, True),
        (replace(OPEN, tolerations=(Toleration("gpu", "Equal", "yes", "NoSchedule"),)), True),
        (replace(OPEN, tolerations=(Toleration("gpu", "Equal", "no"),)), False),
        (replace(OPEN, tolerations=(Toleration(operator="Exists"),)), True),
        (replace(OPEN, selector=(("zone", "a"),)), True),
        (replace(OPEN, selector=(("zone", "b"),)), False),
        (replace(OPEN, terms=(Term((Expression("zone", "In", ("a", "b")),)),)), True),
        (replace(OPEN, terms=(Term((Expression("zone", "NotIn", ("a",)),)),)), False),
        (replace(OPEN, terms=(Term((Expression("size", "Gt", ("5",)),)),)), True),
        (replace(OPEN, terms=(Term((Expression("size", "Lt", ("5",)),)),)), False),
        (replace(OPEN, terms=(Term(None, (Expression("metadata.name", "In", ("n1",)),)),)), True),
        (replace(OPEN, terms=(Term(),)), False),
        (replace(OPEN, terms=()), False),
        (replace(OPEN, terms=(Term((Expression("none", "DoesNotExist"),)),)), True),
    ],
)
def test_nodes_are_judged_as_kube_scheduler_would(constraints: Constraints, admits: bool) -> None:
    assert constraints.admit(HERE) is admits


def test_an_explanation_counts_the_nodes_that_the_pod_excludes() -> None:
    world = World(nodes=2)
    world.put_node(node("n1", 1, labels={"zone": "b"}))
    wish = replace(world.see("a", 600).wish, constraints=Constraints(selector=(("zone", "b"),)))
    world.books.reserve(world.see("holder", 600).wish, ["n1"])

    said = explain(world.books, wish)

    assert "0/2 nodes: 1 InsufficientGPUCore (best: n1/GPU-n1-0 400 of 600), 1 NodeExcluded" in said
    assert said.endswith("; try 0.4 GPU, or again when pod holder on n1/GPU-n1-0 ends")
