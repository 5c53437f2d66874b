"""Pods with preferences: kube-scheduler compares the nodes whose GPUs fit, and the bind takes the place."""

import json
from typing import Any

import pytest

from milligpu.cluster.image_table import COUNTS_FROM
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.preferences import Preferences, read_preferences
from milligpu.cluster.read import NodeReader
from milligpu.model import names
from milligpu.model.errors import BadFormat, NoCapacity
from milligpu.wire.kubernetes import NodeImage
from tests.cluster.objects import node, pod
from tests.scheduler.test_extender import World

TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
PREFERS = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [TERM]}}
NEAR = {"labelSelector": {"matchLabels": {"app": "data"}}, "topologyKey": "kubernetes.io/hostname"}
BODIES = 3


def choosy(name: str, milli: int, **spec: Any) -> dict[str, Any]:
    return pod(name, milli, affinity=PREFERS, **spec)


def points(world: World, found: dict[str, Any], among: list[str]) -> dict[str, int]:
    answer = world.extender.prioritize(json.dumps({"Pod": found, "NodeNames": among}).encode())
    return {each["Host"]: each["Score"] for each in json.loads(answer)}


SPECS: list[tuple[dict[str, Any], Preferences]] = [
    ({}, Preferences()),
    ({"affinity": PREFERS}, Preferences(scored=True)),
    ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, Preferences()),
    (
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        Preferences(scored=True),
    ),
    (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}},
        Preferences(dependent=True),
    ),
    (
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}},
        Preferences(dependent=True),
    ),
    ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, Preferences(scored=True)),
    ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, Preferences(dependent=True)),
    ({"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}, Preferences(dependent=True)),
    ({"volumes": [{"emptyDir": {}}]}, Preferences()),
    (
        {"containers": [{"image": "r:5000/a"}, {"image": "b:1"}], "initContainers": [{"image": "b:1"}]},
        Preferences(images=("b:1", "r:5000/a:latest")),
    ),
]


@pytest.mark.parametrize(("spec", "wanted"), SPECS)
def test_preferences_are_read_from_the_spec(spec: dict[str, Any], wanted: Preferences) -> None:
    assert read_preferences(json.dumps(spec).encode()) == wanted


def test_a_pod_with_preferences_is_offered_all_nodes_that_fit_and_none_is_kept() -> None:
    world = World(nodes=3, cards=1)
    world.filter(pod("full", 1000), ["n1"])

    assert world.filter(choosy("a", 600))["NodeNames"] == ["n0", "n2"]
    entry = world.state.entry("uid-a")
    assert entry is not None
    assert entry.stage is PodStage.WAITING


def test_the_bind_takes_the_place_on_the_chosen_node_or_fails() -> None:
    world = World(nodes=2, cards=1)
    first, second = choosy("a", 600), choosy("b", 600)
    for each in (first, second):
        world.see(each)
        assert world.filter(each)["NodeNames"] == ["n0", "n1"]
    specs = [entry.spec for entry in world.state.waiting()]

    granted = world.state.binds.begin(specs[0], "n1")

    assert granted is not None
    assert granted.node == "n1"
    with pytest.raises(NoCapacity):
        world.state.binds.begin(specs[1], "n1")
    assert world.state.binds.begin(specs[1], "n0") is not None


def queued(name: str, milli: int) -> dict[str, Any]:
    found = choosy(name, milli)
    found["metadata"]["labels"] = {names.QUEUE: "a"}
    return found


def test_a_pod_of_a_queue_keeps_its_place_while_it_is_compared_with_others() -> None:
    world = World(nodes=3, cards=1)
    world.filter(pod("full", 1000), ["n2"])
    world.see(queued("a", 600))
    entry = world.state.entry("uid-a")
    assert entry is not None
    place = world.state.reservations.find_among(entry.spec, world.state.placer.mask(["n1"]))
    assert place is not None
    world.state.reservations.admit(entry, place)

    assert world.filter(queued("a", 600))["NodeNames"] == ["n0", "n1"]
    assert (entry.stage, entry.node) == (PodStage.RESERVED, "n1")
    assert points(world, queued("a", 600), ["n0", "n1"]) == {"n0": 0, "n1": 1}
    with pytest.raises(NoCapacity):
        world.state.binds.begin(entry.spec, "n2")
    assert (entry.stage, entry.node) == (PodStage.RESERVED, "n1"), "it is not lost with a bind that fails"
    granted = world.state.binds.begin(entry.spec, "n0")
    assert granted is not None
    assert granted.node == "n0"
    assert world.filter(pod("b", 600), ["n1"])["NodeNames"] == ["n1"], "its former place is free"


def test_the_only_node_that_fits_is_reserved() -> None:
    world = World(nodes=2, cards=1)
    world.filter(pod("full", 1000), ["n1"])

    assert world.filter(choosy("a", 600))["NodeNames"] == ["n0"]
    entry = world.state.entry("uid-a")
    assert entry is not None
    assert entry.stage is PodStage.RESERVED


def test_a_pod_without_preferences_gets_one_node_as_before() -> None:
    world = World(nodes=3, cards=1)

    assert len(world.filter(pod("a", 600))["NodeNames"]) == 1


def test_points_are_for_packing() -> None:
    world = World(nodes=3, cards=1)
    world.filter(pod("half", 500), ["n1"])

    found = points(world, choosy("a", 500), ["n0", "n1", "n2"])

    assert found == {"n0": 0, "n1": 1, "n2": 0}


def test_points_are_given_to_nodes_that_do_not_fit_any_more_as_none() -> None:
    world = World(nodes=2, cards=1)
    world.filter(pod("full", 1000), ["n1"])

    assert points(world, choosy("a", 500), ["n1", "unknown"]) == {"n1": 0, "unknown": 0}
    assert points(world, pod("bad", 500, notes={"milligpu.dev/policy": "no"}), ["n0"]) == {"n0": 0}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"Pod": 1}', b'{"Pod": {"metadata": {}}, "NodeNames": 3}'])
def test_what_is_no_prioritize_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadFormat):
        World().extender.prioritize(body)


def test_a_large_image_on_some_nodes_is_a_preference() -> None:
    world = World(nodes=0)
    reader = NodeReader()
    for name, size in (("n0", COUNTS_FROM * BODIES), ("n1", 0), ("n2", 0)):
        made = node(name, 1)
        made.status.images = (NodeImage(("torch:2",), size),) if size else None
        observed = reader.read(made)
        assert observed is not None
        world.state.put_node(observed)
    found = pod("a", 500)
    found["spec"]["containers"][0]["image"] = "torch:2"

    assert len(world.filter(found, ["n0", "n1", "n2"])["NodeNames"]) == BODIES

    world.state.drop_node("n0")
    assert not world.state.images.differ(["torch:2"])


def test_kube_scheduler_looks_at_all_nodes_after_a_nomination_that_only_woke_the_pod() -> None:
    world = World(nodes=2, cards=1)
    found = choosy("a", 500, nominated="n1")
    world.see(found)
    entry = world.state.entry("uid-a")
    assert entry is not None
    entry.nudged = "n1"

    assert world.filter(found, ["n1"])["NodeNames"] == []
    assert world.filter(found)["NodeNames"] == ["n0", "n1"]
    assert world.filter(found, ["n1"])["NodeNames"] == ["n1"]
