"""Classes in the cluster state: fallbacks, changes while pods wait or have a place, and the reasons."""

import json
from typing import Any

import pytest

from milligpu import dialects
from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.read import NodeReader, PodReader, read_classes
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_class import GpuClasses, read_class
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.wire import kubernetes
from tests.cluster.objects import node, pod

GOLD, SILVER = read_class("gold", "model=A100", "silver"), read_class("silver", "model=T4", "")


class World:
    """Two nodes, one with an A100 and one with a T4, and a clock."""

    def __init__(self, *classes: Any) -> None:
        self.time = 1000.0
        self.state = ClusterState(Placer(Snapshot(), classes=GpuClasses(classes)), lambda: self.time)
        self._pods, reader = PodReader(dialects.read_pod), NodeReader()
        for found in (node("a", 1, model="A100"), node("t", 1)):
            observed = reader.read(found)
            assert observed is not None
            self.state.put_node(observed)

    def see(self, name: str, gpu_class: str = "gold", nominated: str = "") -> ObservedPod:
        found = pod(name, 1000, notes={"milligpu.dev/class": gpu_class}, nominated=nominated)
        observed = self._pods.read(kubernetes.decode_pod(json.dumps(found).encode()))
        self.state.put_pod(observed)
        return observed

    def entry(self, observed: ObservedPod) -> PodEntry:
        entry = self.state.entry(observed.uid)
        assert entry is not None
        return entry


def test_the_fallback_is_used_when_no_gpu_of_the_class_is_free() -> None:
    world = World(GOLD, SILVER)
    granted = [world.state.reservations.nominate(world.entry(world.see(name))) for name in ("p", "q", "r")]
    assert [grant and (grant.node, grant.gpu_class) for grant in granted] == [("a", "gold"), ("t", "silver"), None]


def test_a_free_gpu_of_the_class_on_a_node_that_was_not_offered_goes_before_the_fallback() -> None:
    world = World(GOLD, SILVER)
    observed = world.see("p")
    offered = world.state.placer.mask(["t"])
    assert world.state.reservations.reserve_on(observed.spec, offered) is None
    assert world.entry(observed).refused_by_filter
    grant = world.state.reservations.nominate(world.entry(observed))
    assert grant is not None
    assert grant.node == "a"
    # kube-scheduler knows something against that node, and asks again without it.
    grant = world.state.reservations.reserve_on(observed.spec, offered)
    assert grant is not None
    assert (grant.node, grant.gpu_class) == ("t", "silver")


def test_a_deleted_class_takes_its_reservations_back_and_says_so() -> None:
    world = World(GOLD, SILVER)
    observed = world.see("p")
    assert world.state.reservations.nominate(world.entry(observed)) is not None
    assert world.state.set_classes(GpuClasses([SILVER]))
    assert world.entry(observed).stage is PodStage.WAITING
    with pytest.raises(BadRequest, match="existing classes: silver"):
        world.state.reservations.nominate(world.entry(observed))
    line = explain_waiting(world.state, observed.spec)
    assert line == "0/2 nodes: 2 ClassGone (class gold does not exist; existing classes: silver)"
    assert not world.state.fits(observed.spec)


def test_a_class_that_cannot_be_read_is_the_reason() -> None:
    world = World(read_class("gold", "eccc", ""))
    line = explain_waiting(world.state, world.see("p").spec)
    assert line.startswith("0/2 nodes: 2 ClassInvalid (class gold: spec.requirements: invalid value 'eccc'")


def test_the_same_classes_again_change_nothing() -> None:
    world = World(GOLD, SILVER)
    entry = world.entry(world.see("p"))
    assert world.state.reservations.nominate(entry) is not None
    before = world.state.pods.capacity_version
    assert not world.state.set_classes(GpuClasses([SILVER, GOLD]))
    assert (entry.stage, world.state.pods.capacity_version) == (PodStage.NOMINATED, before)


def test_a_waiting_pod_is_told_about_its_class_and_each_fallback() -> None:
    world = World(GOLD, SILVER)
    for name in ("p", "q"):
        assert world.state.reservations.nominate(world.entry(world.see(name))) is not None
    line = explain_waiting(world.state, world.see("r").spec)
    first, second = line.split("; fallback silver: ")
    assert first.startswith("0/2 nodes: 1 InsufficientGPUCore (best: a/GPU-a-0")
    assert second.startswith("0/2 nodes: 1 ModelMismatch")
    assert "InsufficientGPUCore (best: t/GPU-t-0" in second


def test_objects_are_read_with_their_faults() -> None:
    meta = kubernetes.ObjectMeta(name="gold")
    [found] = read_classes([kubernetes.KubeGpuClass(meta, kubernetes.GpuClassSpec("eccc", "silver"))])
    assert (found.requirements, found.fallback) == (None, "silver")
    assert "eccc" in found.problem
