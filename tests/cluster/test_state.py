"""The state follows the cluster: reservations end, grants count as they say, and nothing is granted twice."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu import dialects
from milligpu.cluster.binds import DOUBT_S
from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.node_constraints import (
    NodeConstraints,
    NodeFacts,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.read import NodeReader, PodReader
from milligpu.cluster.reservations import NOMINATED_S, RESERVED_S
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.errors import NoCapacity
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.wire import kubernetes
from tests.cluster.objects import node, pod


class World:
    """A cluster state, its readers and a clock."""

    def __init__(self, nodes: int = 1, cards: int = 1) -> None:
        self.time = 0.0
        self.state = ClusterState(Placer(Snapshot()), lambda: self.time)
        self.pods = PodReader(dialects.read_pod)
        self.nodes = NodeReader()
        self.names = [f"n{at}" for at in range(nodes)]
        for name in self.names:
            self.put_node(node(name, cards))

    def put_node(self, found: kubernetes.KubeNode) -> None:
        observed = self.nodes.read(found)
        if observed is not None:
            self.state.put_node(observed)

    def observed(self, name: str, milli: int, grant: Grant | None = None, **more: str) -> ObservedPod:
        notes = {"milligpu.dev/resize": more["resize"]} if "resize" in more else None
        phase, nominated = more.get("phase", "Pending"), more.get("nominated", "")
        found = pod(name, milli, grant=grant, phase=phase, nominated=nominated, notes=notes)
        return self.pods.read(kubernetes.decode_pod(json.dumps(found).encode()))

    def see(self, name: str, milli: int, grant: Grant | None = None, **more: str) -> ObservedPod:
        observed = self.observed(name, milli, grant, **more)
        self.state.put_pod(observed)
        return observed

    def free(self, name: str = "n0") -> int:
        snap = self.state.placer.snapshot
        return int(snap.milli[snap.cell_of[name, f"GPU-{name}-0"]])

    def bind(self, name: str, milli: int) -> Grant:
        spec = self.see(name, milli).spec
        grant = self.state.binds.begin(spec, "n0")
        assert grant is not None
        self.state.binds.end(spec.pod.uid, bound=True)
        return grant


def test_a_reservation_that_no_bind_follows_ends() -> None:
    world = World()
    assert world.state.reservations.reserve(world.see("a", 600).spec, ["n0"]) is not None
    assert world.free() == 400
    world.time += RESERVED_S
    world.state.expire()
    assert world.free() == 1000


def test_a_deleted_pod_releases_what_it_held() -> None:
    world = World()
    world.bind("a", 600)
    world.state.drop_pod("uid-a")
    assert world.free() == 1000


def test_a_pod_that_ended_holds_nothing() -> None:
    world = World()
    grant = world.bind("a", 600)
    world.see("a", 600, grant, phase="Succeeded")
    assert world.free() == 1000


def test_an_outdated_event_of_a_bound_pod_does_not_unbind_it() -> None:
    world = World()
    world.bind("a", 600)
    world.see("a", 600)
    assert world.free() == 400


def test_a_bind_without_an_answer_keeps_its_place_until_it_is_settled() -> None:
    world = World()
    spec = world.see("a", 600).spec
    world.state.binds.begin(spec, "n0")
    world.state.binds.mark_unknown("uid-a")
    world.state.binds.confirm_unbound("uid-a")
    assert world.free() == 400, "the request may still be under way"
    with pytest.raises(NoCapacity, match="is unknown"):
        world.state.reservations.reserve(spec, ["elsewhere"])
    world.time += DOUBT_S
    world.state.binds.confirm_unbound("uid-a")
    assert world.free() == 1000


def test_a_bind_with_an_unknown_outcome_may_be_repeated_on_the_same_node() -> None:
    world = World()
    spec = world.see("a", 600).spec
    first = world.state.binds.begin(spec, "n0")
    world.state.binds.mark_unknown("uid-a")
    assert world.state.binds.begin(spec, "n0") == first


def test_a_restart_rebuilds_the_same_state_from_the_cluster() -> None:
    world = World()
    grant = world.bind("a", 600)
    again = World(nodes=0)
    again.see("a", 600, grant)
    again.put_node(node("n0", 1))
    assert again.free() == 400
    assert again.state.reservations.reserve(again.see("b", 600).spec, ["n0"]) is None


def test_a_pod_bound_by_another_scheduler_displaces_reservations() -> None:
    world = World()
    world.state.reservations.reserve(world.see("mine", 600).spec, ["n0"])
    theirs = Grant("uid-theirs", "n0", World().bind("x", 600).containers)
    world.see("theirs", 600, theirs)
    mine = world.state.entry("uid-mine")
    assert mine is not None
    assert mine.stage is PodStage.WAITING
    assert world.free() == 400


def test_a_node_that_changes_keeps_bound_pods_and_drops_reservations() -> None:
    world = World()
    world.bind("a", 300)
    world.state.reservations.reserve(world.see("b", 300).spec, ["n0"])
    world.put_node(node("n0", 2))
    assert world.free() == 700


def test_a_pod_that_was_bound_while_a_list_ran_is_not_missing_from_it() -> None:
    world = World()
    world.bind("old", 200)
    world.bind("gone", 200)
    world.state.pods.begin_list()
    world.bind("new", 200)
    assert world.state.pods.missing_from({"uid-old"}) == ["uid-gone"]


def test_a_pod_that_kube_scheduler_asks_about_takes_the_place_of_a_nomination() -> None:
    world = World()
    world.see("hint", 600)
    (entry,) = world.state.waiting()
    world.state.reservations.nominate(entry)
    assert world.state.reservations.reserve(world.see("real", 600).spec, ["n0"]) is not None
    assert entry.stage is PodStage.WAITING
    assert world.free() == 400


def test_a_bind_under_way_is_no_nomination_that_another_pod_may_displace() -> None:
    world = World()
    spec = world.see("a", 600).spec
    (entry,) = world.state.waiting()
    world.state.reservations.nominate(entry)
    world.state.binds.begin(spec, "n0")
    assert world.state.reservations.reserve(world.see("b", 600).spec, ["n0"]) is None


def test_a_nomination_that_is_not_used_ends_unless_others_are_before_it() -> None:
    world = World()
    world.see("a", 600)
    (entry,) = world.state.waiting()
    world.state.reservations.nominate(entry)
    world.time += NOMINATED_S
    world.state.pods.last_asked = 0, world.time
    world.state.expire()
    assert entry.stage is PodStage.NOMINATED
    world.time += NOMINATED_S
    world.state.expire()
    assert entry.stage is PodStage.WAITING


def test_an_earlier_terms_bind_without_an_answer_keeps_its_place() -> None:
    old, new = World(), World()
    old.state.binds.begin(old.see("a", 600).spec, "n0")
    old.state.binds.mark_unknown("uid-a")
    new = World(nodes=0)
    new.state.binds.carry_over(old.state.binds.unknown())
    new.put_node(node("n0", 1))
    new.see("a", 600)
    assert new.free() == 400


def test_a_nomination_that_kube_scheduler_clears_is_released() -> None:
    world = World()
    world.see("a", 600)
    (entry,) = world.state.waiting()
    world.state.reservations.nominate(entry)
    world.see("a", 600, nominated="n0")
    assert world.free() == 400
    world.see("a", 600)
    assert world.free() == 1000
    assert entry.held_off_at == world.time


_millis = st.sampled_from([200, 300, 600, 1000])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from("rcbdgxte"), _millis), max_size=60))
def test_no_sequence_of_events_overcommits_a_gpu_or_leaks_a_share(steps: list[tuple[int, str, int]]) -> None:
    world = World(nodes=2, cards=2)
    for number, step, milli in steps:
        _act(world, f"p{number}", step, milli)
        snap = world.state.placer.snapshot
        assert (snap.milli >= 0).all()
        assert (snap.mib >= 0).all()
    for number in range(8):
        world.state.drop_pod(f"uid-p{number}")
    assert not world.state.placer.snapshot.holdings
    assert world.state.waiting() == []
    assert [world.free(name) for name in world.names] == [1000, 1000]


def _act(world: World, name: str, step: str, milli: int) -> None:
    state, uid = world.state, f"uid-{name}"
    entry = state.entry(uid)
    spec = entry.spec if entry is not None else world.see(name, milli).spec
    stage = entry.stage if entry is not None else PodStage.WAITING
    with suppress(NoCapacity):
        match step:
            case "r":
                state.reservations.reserve(spec, world.names)
            case "c" if stage is PodStage.WAITING and entry is not None:
                state.reservations.nominate(entry)
            case "b":
                state.binds.begin(spec, world.names[milli % 2])
            case "d":
                state.binds.mark_unknown(uid)
            case "g":
                state.binds.end(uid, bound=milli != 600)
            case "x":
                state.drop_pod(uid)
            case "t":
                world.time += milli / 10
                state.expire()
            case _:
                state.binds.confirm_unbound(uid)


# -- conditions ------------------------------------------------------------------------------------------------

HERE = NodeFacts("n1", {"zone": "a", "size": "7"}, (kubernetes.Taint("gpu", "NoSchedule", "yes"),))
OPEN = NodeConstraints(tolerations=(Toleration("gpu", "Exists"),))


@pytest.mark.parametrize(
    ("constraints", "admits"),
    [
        (NodeConstraints(), False),
        (OPEN, True),
        (replace(OPEN, tolerations=(Toleration("gpu", "Equal", "yes", "NoSchedule"),)), True),
        (replace(OPEN, tolerations=(Toleration("gpu", "Equal", "no"),)), False),
        (replace(OPEN, tolerations=(Toleration(operator="Exists"),)), True),
        (replace(OPEN, selector=(("zone", "a"),)), True),
        (replace(OPEN, selector=(("zone", "b"),)), False),
        (replace(OPEN, terms=(NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("a", "b")),)),)), True),
        (replace(OPEN, terms=(NodeSelectorTerm((NodeSelectorRequirement("zone", "NotIn", ("a",)),)),)), False),
        (replace(OPEN, terms=(NodeSelectorTerm((NodeSelectorRequirement("size", "Gt", ("5",)),)),)), True),
        (replace(OPEN, terms=(NodeSelectorTerm((NodeSelectorRequirement("size", "Lt", ("5",)),)),)), False),
        (
            replace(
                OPEN, terms=(NodeSelectorTerm(None, (NodeSelectorRequirement("metadata.name", "In", ("n1",)),)),)
            ),
            True,
        ),
        (replace(OPEN, terms=(NodeSelectorTerm(),)), False),
        (replace(OPEN, terms=()), False),
        (replace(OPEN, terms=(NodeSelectorTerm((NodeSelectorRequirement("none", "DoesNotExist"),)),)), True),
    ],
)
def test_conditions_on_nodes_mean_the_same_as_to_kube_scheduler(constraints: NodeConstraints, admits: bool) -> None:
    assert constraints.admit(HERE) is admits


def test_an_explanation_names_the_condition_that_excludes_a_node() -> None:
    def excluded(**conditions: Any) -> str:
        return replace(OPEN, **conditions).refuse(HERE) or ""

    assert excluded(selector=(("zone", "b"),)) == "nodeSelector zone=b, and the node has zone=a"
    assert excluded(selector=(("disk", "ssd"),)) == "nodeSelector disk=ssd, and the node has no such label"
    term = NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("b", "c")),))
    assert excluded(terms=(term,)) == "required nodeAffinity: zone In (b, c)"
    tainted = replace(HERE, taints=(kubernetes.Taint("gpu", "NoSchedule", "only"),))
    assert NodeConstraints().refuse(tainted) == "taint gpu=only:NoSchedule is not tolerated"


def test_an_explanation_counts_the_nodes_that_the_pod_excludes() -> None:
    world = World(nodes=2)
    world.put_node(node("n1", 1, labels={"zone": "b"}))
    spec = replace(world.see("a", 600).spec, constraints=NodeConstraints(selector=(("zone", "b"),)))
    world.state.reservations.reserve(world.see("holder", 600).spec, ["n1"])

    said = explain_waiting(world.state, spec)

    assert "0/2 nodes: 1 InsufficientGPUCore (best: n1/GPU-n1-0 has 0.4 of 0.6 GPU), 1 NodeExcluded (n0: " in said
    assert said.endswith("; try 0.4 GPU, or again when pod holder on n1/GPU-n1-0 ends")


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ('{"v":99,"all":{"main":[{"device":"GPU-n0-0","part":"1/2"}]}}', [0, 1000]),
        ('{"v":99,"all":"of another node: GPU-n7-0"}', [0, 0]),
        ("encrypted", [0, 0]),
    ],
)
def test_a_grant_that_cannot_be_read_holds_its_gpus_whole(text: str, free: list[int]) -> None:
    world = World(cards=2)
    found = pod("a", 300, notes={names.GRANT: text}, nodeName="n0")
    world.state.put_pod(world.pods.read(kubernetes.decode_pod(json.dumps(found).encode())))
    snap = world.state.placer.snapshot
    assert [int(snap.milli[snap.cell_of["n0", f"GPU-n0-{at}"]]) for at in range(2)] == free

    waiting = world.see("b", 1000).spec
    assert (world.state.reservations.reserve(waiting, ["n0"]) is None) == (free == [0, 0])
    if free == [0, 0]:
        assert "pod default/a counts as holding" in explain_waiting(world.state, waiting)

    world.state.drop_pod("uid-a")
    assert not world.state.unreadable_grants()
    assert world.state.reservations.reserve(waiting, ["n0"]) is not None


def test_a_grant_that_can_be_read_again_holds_what_it_says() -> None:
    world = World()
    grant = Grant("uid-a", "n0", {"main": (GpuShare("GPU-n0-0", Share(Milli(300), Mib(4915), Milli(300))),)})
    found = pod("a", 300, notes={names.GRANT: "{}"}, nodeName="n0")
    world.state.put_pod(world.pods.read(kubernetes.decode_pod(json.dumps(found).encode())))
    assert world.free() == 0
    world.see("a", 300, grant)
    assert world.free() == 700
