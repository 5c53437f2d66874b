"""Filter calls of an autoscaler: answered for nodes that do not exist yet, and without a side effect."""

import json
from typing import Any

import msgspec
import pytest

from milligpu.cluster.pod_entry import PodStage
from milligpu.model.errors import BadFormat
from milligpu.scheduler.extender import NO_ROOM
from tests.cluster.objects import MIB, node, pod
from tests.scheduler.test_extender import World

LABELS = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": str(MIB), "nvidia.com/gpu.product": "T4"}


def template(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A node type that never had a node."""
    status = {"allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/vgpu": "2000"}}
    return {"metadata": {"name": name, "labels": LABELS if labels is None else labels}, "status": status}


def asked(world: World, found: dict[str, Any], *nodes: Any) -> dict[str, Any]:
    """What an extender without nodeCacheCapable is asked."""
    body: dict[str, Any] = {
        "Pod": found,
        "Nodes": {"metadata": {}, "items": [msgspec.to_builtins(each) for each in nodes]},
    }
    return json.loads(world.extender.simulate(json.dumps({**body, "NodeNames": None}).encode()))


def fitting(answer: dict[str, Any]) -> list[str]:
    return [each["metadata"]["name"] for each in answer["Nodes"]["items"]]


def test_a_pod_fits_on_a_node_type_by_its_labels_or_by_the_node_that_it_was_copied_from() -> None:
    world = World()
    answer = asked(world, pod("a", 600), template("by-labels"), node("copied", 2), template("no-gpu", {}))
    assert fitting(answer) == ["by-labels", "copied"]
    assert answer["FailedAndUnresolvableNodes"] == {"no-gpu": NO_ROOM}
    # A sum of two GPUs is not one GPU of that size.
    assert fitting(asked(world, pod("b", 600, notes={"milligpu.dev/require": "model=A100"}), template("t4"))) == []


def test_nothing_is_reserved_however_often_an_autoscaler_asks() -> None:
    world = World(nodes=1, cards=1)
    for _ in range(3):
        assert fitting(asked(world, pod("a", 600), template("new"), node("n0", 1))) == ["new", "n0"]
    entry = world.state.entry("uid-a")
    assert entry is None or entry.stage is PodStage.WAITING
    assert world.filter(pod("b", 1000))["NodeNames"] == ["n0"]


def test_a_node_that_the_cluster_has_is_judged_by_what_is_free_on_it() -> None:
    world = World(nodes=1, cards=1)
    assert world.filter(pod("holder", 600))["NodeNames"] == ["n0"]
    answer = asked(world, pod("a", 600), node("n0", 1), template("new"))
    assert fitting(answer) == ["new"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n0"]


def test_a_pod_without_gpus_fits_everywhere_and_no_list_of_nodes_is_an_error() -> None:
    world = World()
    assert fitting(asked(world, pod("plain", None), template("new"))) == ["new"]
    with pytest.raises(BadFormat):
        world.extender.simulate(json.dumps({"Pod": pod("a", 600), "Nodes": {"items": 7}}).encode())
    with pytest.raises(BadFormat):
        world.extender.simulate(json.dumps({"Pod": pod("a", 600), "NodeNames": ["n0"]}).encode())
