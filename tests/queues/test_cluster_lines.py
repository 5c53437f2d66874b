"""Queues of a cluster state: who is in line, what counts as held, and what a pod keeps."""

from typing import Any

import msgspec

from milligpu import dialects
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.read import NodeReader, PodReader
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder, Quota
from milligpu.model.reasons import QueueReason
from milligpu.model.units import Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.queues.cluster_lines import ClusterLines, QueueMemory
from milligpu.queues.standing import standings
from milligpu.queues.usage import HALF_LIFE_S, DecayedUsage
from milligpu.wire.kubernetes import KubePod
from tests.cluster.objects import node
from tests.cluster.objects import pod as manifest

QUEUE = GpuQueue("a", order=QueueOrder.FIFO)


class World:
    """A cluster state with one node, a clock, and what the controller remembers."""

    def __init__(self, *queues: GpuQueue, gpus: int = 1) -> None:
        self.now = 1000.0
        self.state = ClusterState(Placer(Snapshot()), lambda: self.now)
        self.queues = GpuQueues(queues or [QUEUE])
        self.memory = QueueMemory({}, {}, set())
        self._pods = PodReader(dialects.read_pod)
        found = NodeReader().read(node("n0", gpus))
        assert found is not None
        self.state.put_node(found)

    def put(
        self,
        name: str,
        milli: int,
        *,
        queue: str = "a",
        user: str = "",
        gates: tuple[str, ...] = (names.QUEUE,),
        notes: dict[str, str] | None = None,
        mib: int | None = None,
        finished: str = "",
        **spec: Any,
    ) -> None:
        found = manifest(name, milli, notes=notes, schedulingGates=[{"name": each} for each in gates], **spec)
        if mib is not None:
            found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = str(mib)
        found["metadata"] |= {"labels": {names.QUEUE: queue}, "creationTimestamp": "2026-01-01T00:00:00Z"}
        if finished:
            found["status"]["containerStatuses"] = [{"state": {"terminated": {"finishedAt": finished}}}]
        if user:
            found["metadata"]["annotations"][names.USER] = user
        self.state.put_pod(self._pods.read(msgspec.json.decode(msgspec.json.encode(found), type=KubePod)))

    def view(self) -> ClusterLines:
        return ClusterLines(self.state, self.queues, self.memory, self.now)

    def admit(self) -> list[str]:
        return [entry.spec.pod.name for entry, _ in self.view().admit()]


def test_pods_are_admitted_in_order_and_their_places_are_reserved() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.put(name, 500)
    assert world.admit() == ["one", "two"]
    assert {each.spec.pod.name for each in world.state.pods if each.stage is PodStage.RESERVED} == {"one", "two"}
    assert world.admit() == []


def test_a_pod_keeps_its_place_while_its_gate_is_removed() -> None:
    world = World()
    world.put("one", 500)
    assert world.admit() == ["one"]
    world.put("one", 500)  # a late event that still has the gate
    assert world.state.pods["uid-one"].stage is PodStage.RESERVED
    world.put("one", 500, gates=())
    entry = world.state.pods["uid-one"]
    assert (entry.stage, entry.queued, entry.gated) == (PodStage.RESERVED, False, False)
    world.now += 100
    world.state.expire()
    assert entry.stage is PodStage.WAITING


def test_a_pod_with_another_gate_is_not_in_line_and_loses_its_place() -> None:
    world = World()
    world.put("one", 500, gates=(names.QUEUE, "example.com/other"))
    assert world.admit() == []
    world.put("one", 500)
    assert world.admit() == ["one"]


def test_a_pod_that_was_admitted_counts_for_its_queue_until_it_is_gone() -> None:
    world = World(GpuQueue("a", ceiling=Quota(Milli(500))))
    world.put("one", 500, gates=())
    world.put("two", 500)
    view = world.view()
    assert [entry.spec.pod.name for entry, _ in view.admit()] == []
    assert view.admission.reasons == {"uid-two": QueueReason.CEILING}
    world.state.drop_pod("uid-one")
    assert world.admit() == ["two"]


def test_pods_of_a_queue_that_is_gone_are_stray() -> None:
    world = World()
    world.put("lost", 500, queue="gone")
    view = world.view()
    assert [each.spec.pod.name for each in view.stray] == ["lost"]
    assert list(view.admit()) == []


def test_a_user_who_had_much_of_late_comes_after_one_who_had_little() -> None:
    world = World(GpuQueue("a"))
    world.memory.usages["a", "heavy"] = DecayedUsage(800.0, world.now - HALF_LIFE_S)
    world.put("one", 600, user="heavy")
    world.put("two", 600, user="light")
    assert world.admit() == ["two"]
    assert world.memory.usages["a", "heavy"].average == 400.0


def test_a_standing_says_position_reason_and_latest_start() -> None:
    world = World()
    world.put("one", 1000, gates=(), activeDeadlineSeconds=600)
    entry = world.state.pods["uid-one"]
    grant = world.state.reservations.nominate(entry)
    assert grant is not None
    world.put("two", 1000, activeDeadlineSeconds=100)
    world.put("three", 1000)
    view = world.view()
    assert list(view.admit()) == []
    found = list(standings(view.lines, view.admission, QUEUE, world.now))
    assert [each.message for each in found] == [
        "1st of 2 in a; waits for 1 GPU with 16Gi; room on n0 is kept for it; "
        "starts by 00:26 UTC, by the time limits of running pods",
        "2nd of 2 in a; waits for 1 GPU with 16Gi after those before it; start unknown",
    ]
