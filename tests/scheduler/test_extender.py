"""The extender's answers: one node or none, and for what is no request an error, never a yes."""

import json
import random
from typing import Any, cast

import pytest

from milligpu import dialects
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.read import NodeReader, PodReader
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.scheduler.extender import NO_ROOM, Extender
from milligpu.wire import kubernetes
from testing.controlplane.memory import remembered_pods
from tests.cluster.objects import node, pod


class World:
    """Books over a few nodes, and a clock that stands still."""

    def __init__(self, nodes: int = 3, cards: int = 2) -> None:
        self.time = 0.0
        self.state = ClusterState(Placer(Snapshot()), lambda: self.time)
        self.pods = PodReader(dialects.read_pod)
        self.extender = Extender(self.state, self.pods)
        self.names = [f"n{at}" for at in range(nodes)]
        reader = NodeReader()
        for name in self.names:
            observed = reader.read(node(name, cards))
            assert observed is not None
            self.state.put_node(observed)

    def filter(self, found: dict[str, Any], among: Any = None) -> dict[str, Any]:
        body = {"Pod": found, "Nodes": None, "NodeNames": self.names if among is None else among}
        return json.loads(self.extender.filter(json.dumps(body).encode()))

    def see(self, found: dict[str, Any]) -> None:
        self.state.put_pod(self.pods.read(kubernetes.decode_pod(json.dumps(found).encode())))


def test_filter_answers_with_one_node_and_keeps_it() -> None:
    world = World()

    answer = world.filter(pod("a", 1000))

    (chosen,) = answer["NodeNames"]
    entry = world.state.entry("uid-a")
    assert entry is not None
    assert (entry.stage, entry.node) == (PodStage.RESERVED, chosen)


def test_two_pods_never_get_the_same_share() -> None:
    world = World(nodes=1, cards=1)

    assert world.filter(pod("a", 600))["NodeNames"] == ["n0"]
    assert world.filter(pod("b", 600))["NodeNames"] == []
    assert world.filter(pod("c", 400))["NodeNames"] == ["n0"]


def test_the_same_offer_means_the_same_nodes_when_others_came_and_went() -> None:
    world = World(nodes=4, cards=1)
    assert world.filter(pod("a", 1000), ["n1", "n3"])["NodeNames"] in (["n1"], ["n3"])

    # The rows of n1 and n3 may be others' by now.
    world.state.drop_node("n0")
    world.state.drop_node("n1")
    for name in ("m0", "m1", "m2", "n1"):
        observed = NodeReader().read(node(name, 1))
        assert observed is not None
        world.state.put_node(observed)
    world.state.drop_pod("uid-a")

    got = [world.filter(pod(name, 1000), ["n1", "n3"])["NodeNames"] for name in "bcd"]
    assert sorted(got) == [[], ["n1"], ["n3"]]


def test_each_of_many_node_lists_is_respected() -> None:
    world = World(nodes=40, cards=1)

    for turn in range(2):
        for at, name in enumerate(world.names):
            answer = world.filter(pod(f"p{turn}-{at}", 500), [name])
            assert answer["NodeNames"] == [name]


def test_a_refusal_names_every_node_as_beyond_preemption() -> None:
    world = World()

    answer = world.filter(pod("a", 2000, notes={names.REQUIRE: "model=H100"}))

    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(world.names, NO_ROOM)
    assert "FailedNodes" not in answer


def test_a_bad_request_is_refused_with_the_field_and_what_is_allowed() -> None:
    world = World()

    answer = world.filter(pod("a", 1500))

    (message,) = set(answer["FailedAndUnresolvableNodes"].values())
    assert names.VGPU in message
    assert "1500" in message


def test_only_nodes_that_were_offered_are_chosen() -> None:
    world = World()

    assert world.filter(pod("a", 300), ["n2"])["NodeNames"] == ["n2"]
    assert world.filter(pod("a", 300), ["n1"])["NodeNames"] == ["n1"]
    assert world.filter(pod("a", 300), ["elsewhere"])["NodeNames"] == []
    assert world.filter(pod("a", 300), [])["NodeNames"] == []


def test_a_reserved_place_is_confirmed_when_it_is_offered() -> None:
    world = World()
    world.see(pod("a", 300))
    (entry,) = world.state.waiting()
    grant = world.state.reservations.nominate(entry)
    assert grant is not None

    assert world.filter(pod("a", 300))["NodeNames"] == [grant.node]
    assert entry.grant == grant


def test_a_pod_without_gpus_may_go_anywhere() -> None:
    assert World().filter(pod("a", None))["NodeNames"] == ["n0", "n1", "n2"]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "simulate"])
def test_a_pod_that_kube_scheduler_asks_about_after_it_was_deleted_is_not_remembered(verb: str) -> None:
    world, gone = World(nodes=1, cards=1), pod("gone", 1000)
    world.filter(pod("other", 1000))
    if verb == "filter":  # a bound pod is refused, and so gets no entry
        gone["spec"]["nodeName"] = "n0"
    body: dict[str, Any] = {"Pod": gone, "Nodes": {"items": []}, "NodeNames": world.names}

    getattr(world.extender, verb)(json.dumps(body).encode())

    assert world.state.entry("uid-gone") is None
    assert "uid-gone" not in remembered_pods(world.pods)
    assert "uid-other" in remembered_pods(world.pods)


def test_node_objects_instead_of_names_are_an_error_that_says_what_to_set() -> None:
    world = World()

    answer = json.loads(world.extender.filter(json.dumps({"Pod": pod("a", 300), "Nodes": {"items": []}}).encode()))

    assert "nodeCacheCapable" in answer["Error"]
    assert "NodeNames" not in answer


def test_ten_thousand_broken_requests_get_an_error_or_no_node_and_change_nothing() -> None:
    world = World()
    dice = random.Random(8)
    good = json.dumps({"Pod": pod("a", 300), "Nodes": None, "NodeNames": world.names}).encode()
    rejected = 0
    for _ in range(10_000):
        body = _broken(dice, good, world.names)
        try:
            answer: dict[str, Any] = json.loads(world.extender.filter(body))
        except BadFormat:
            rejected += 1
            continue
        chosen: list[str] = answer.get("NodeNames") or []
        if chosen:
            assert set(chosen) <= set(json.loads(body.decode(errors="replace"))["NodeNames"])
        world.time += 100
        world.state.expire()
        assert not world.state.placer.snapshot.holdings, "a promise to a pod that nobody has seen outlived it"
    assert rejected > 1000


ODD: list[Any] = [None, 7, -1, "x", [], {}, [{}], True, 1e308, "\u0000"]


def _spoil(dice: random.Random, part: Any) -> None:
    """A key gone somewhere, or another type in its place."""
    while isinstance(part, dict) and part:
        inside = cast("dict[str, Any]", part)
        key = dice.choice(list(inside))
        if dice.random() < 0.4 or not isinstance(inside[key], dict):
            if dice.random() < 0.5:
                del inside[key]
            else:
                inside[key] = dice.choice(ODD)
            return
        part = inside[key]


def _broken(dice: random.Random, good: bytes, nodes: list[str]) -> bytes:
    kind = dice.randrange(6)
    if kind == 0:  # bytes that are not JSON
        at = dice.randrange(len(good))
        return good[:at] + bytes([dice.randrange(256)]) + good[at + dice.randrange(3) :]
    if kind == 1:
        return good[: dice.randrange(len(good))]
    found: Any = json.loads(good)
    if kind == 2:
        _spoil(dice, found)
    elif kind == 3:
        lists: list[Any] = [["?"] * 5000, [""], ['a"b', "c,d"], [1, 2], {"n0": 1}, "n0", [nodes]]
        found["NodeNames"] = dice.choice(lists)
    elif kind == 4:
        limits = found["Pod"]["spec"]["containers"][0]["resources"]["limits"]
        odd: list[Any] = ["-1", "0.5", "1e99", "9" * 400, "", 300, "300Gi", None, [300]]
        limits[names.VGPU] = dice.choice(odd)
    else:
        found["Pod"]["spec"]["containers"] *= dice.choice([0, 2, 50])
    return json.dumps(found).encode()


NO_BINDS: list[Any] = [
    None,
    [],
    {},
    {"PodName": "a"},
    {"PodName": 1, "PodNamespace": "b", "PodUID": "c", "Node": "d"},
    {"PodName": "../x", "PodNamespace": "b", "PodUID": "c", "Node": "d"},
    {"PodName": "a", "PodNamespace": "", "PodUID": "c", "Node": "d"},
    {"PodName": "a", "PodNamespace": "b", "PodUID": "", "Node": "d"},
]


@pytest.mark.parametrize("order", NO_BINDS)
def test_a_bind_request_that_names_no_pod_is_refused(order: Any) -> None:
    with pytest.raises(BadFormat):
        Extender.bind_request(json.dumps(order).encode())
