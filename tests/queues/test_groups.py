"""Groups: enough pods start together or none, whatever else waits, and those that lost their place rejoin."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from milligpu.cluster.pod_entry import PodStage
from milligpu.model import names
from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder, Quota
from milligpu.model.group import PodGroup
from milligpu.model.reasons import QueueReason
from milligpu.model.units import Milli
from milligpu.queues.order import QueuedPod
from milligpu.queues.standing import standings
from tests.queues.test_admit import add, admission, nodes, pod, start
from tests.queues.test_cluster_lines import World


def member(name: str, milli: int, size: int, least: int | None = None, *, at: float = 0.0) -> QueuedPod:
    one = pod(name, milli, at=at)
    return replace(one, request=replace(one.request, group=PodGroup("job", size, least or size)))


def test_all_of_a_group_start_or_none() -> None:
    here = admission(nodes(2))
    add(here, member("a", 700, 3), member("b", 700, 3, at=1.0), member("c", 700, 3, at=2.0))
    assert start(here, 3.0) == []
    assert {here.reasons[each] for each in "abc"} == {QueueReason.NO_ROOM}
    here = admission(nodes(3))
    add(here, member("a", 700, 3), member("b", 700, 3, at=1.0), member("c", 700, 3, at=2.0))
    assert start(here, 3.0) == ["a", "b", "c"]


def test_a_group_waits_for_its_pods_and_keeps_no_room_meanwhile() -> None:
    here = admission(nodes(1))
    add(here, member("a", 500, 2), pod("other", 1000, at=1.0))
    assert start(here, 2.0) == ["other"]
    assert here.reasons["a"] is QueueReason.GROUP_INCOMPLETE


def test_with_the_least_number_placed_the_others_of_a_group_start_when_they_fit() -> None:
    here = admission(nodes(1))
    pods = [member(name, 400, 3, 2, at=at) for at, name in enumerate("abc")]
    add(here, *pods)
    assert start(here, 5.0) == ["a", "b"]
    here.end(pods[0], 6.0)
    assert start(here, 6.0) == ["c"]


def test_room_of_a_group_that_is_first_is_given_to_no_later_pod() -> None:
    here = admission(nodes(1, 1))
    running = pod("running", 1000, 100.0)
    add(here, running)
    assert start(here, 0.0) == ["running"]
    add(here, member("a", 1000, 2, at=1.0), member("b", 1000, 2, at=2.0), pod("small", 100, at=3.0))
    assert start(here, 4.0) == []
    assert here.reasons["small"] is QueueReason.WAITS_FOR_TURN
    add(here, pod("short", 100, 50.0, at=5.0))
    assert start(here, 6.0) == []  # one GPU of the group is free already and is kept
    here.end(running, 50.0)
    assert start(here, 50.0) == ["a", "b"]


def test_a_ceiling_counts_a_group_as_a_whole() -> None:
    queue = GpuQueue("a", order=QueueOrder.FIFO, ceiling=Quota(Milli(1500)))
    here = admission(nodes(2), queue)
    add(here, member("a", 800, 2), member("b", 800, 2, at=1.0))
    assert start(here, 2.0) == []
    assert here.reasons["a"] is QueueReason.CEILING


sizes = st.lists(st.tuples(st.integers(1, 10), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=14)


@given(sizes, st.integers(1, 3))
def test_no_group_is_half_started_whatever_comes_and_ends(pods: Sequence[tuple[int, int, int]], gpus: int) -> None:
    here = admission(nodes(gpus))
    least = {key: next(least for _, group, least in pods if group == key) for key in {each[1] for each in pods}}
    running: list[QueuedPod] = []
    for at, (tenths, group, _) in enumerate(pods):
        one = pod(f"pod-{at}", 100 * tenths, 10.0, at=float(at))
        if group:
            one = replace(one, request=replace(one.request, group=PodGroup(f"g{group}", 14, least[group])))
        add(here, one)
        begun = [each.pod for each in here.start(float(at))]
        before = {each.group for each in running}
        for key in {each.group for each in begun if each.group} - before:
            count = sum(each.group == key for each in begun)
            assert count >= least[int(key[1][1:])]
        running += begun
        snap = here.placer.snapshot
        assert (snap.milli >= 0).all()
        assert len(snap.holdings) == len(running)  # what was tried and what was kept is released
        # A group ends as a whole, so that it is never below its number by itself.
        if at % 3 == 2 and running:
            key = running[0].group
            ending = [each for each in running if each is running[0] or (key and each.group == key)]
            for each in ending:
                here.end(each, float(at))
            running = [each for each in running if each not in ending]


class GroupWorld(World):
    """Pods of a group in no queue."""

    def member(
        self, name: str, milli: int, size: int, gates: tuple[str, ...] = (names.QUEUE,), ended: str = ""
    ) -> None:
        """Add a pod of the group; with the time of its end, one that has succeeded."""
        notes = {names.GROUP: "job", names.GROUP_SIZE: str(size)}
        phase = {"phase": "Succeeded"} if ended else {}
        self.put(
            name, milli, queue="", gates=() if ended else gates, notes=notes, mib=None, finished=ended, **phase
        )


def test_a_group_needs_no_queue_and_reserves_its_places_together() -> None:
    world = GroupWorld(gpus=2)
    world.queues = GpuQueues()
    world.member("a", 1000, 2)
    assert world.admit() == []
    view = world.view()
    list(view.admit())
    (found,) = [
        each for queue in view.lines.queues for each in standings(view.lines, view.admission, queue, world.now)
    ]
    assert "1st of 1 without a queue; waits for the other pods of its group: 1 of 2 exist" in found.message
    world.member("b", 1000, 2)
    assert world.admit() == ["a", "b"]
    assert [each.stage for each in world.state.pods] == [PodStage.RESERVED] * 2


def test_a_pod_that_lost_its_place_rejoins_its_group_also_without_its_gate() -> None:
    world = GroupWorld(gpus=2)
    world.member("a", 1000, 2)
    world.member("b", 1000, 2)
    assert world.admit() == ["a", "b"]
    for name in "ab":
        world.member(name, 1000, 2, gates=())
    a, b = world.state.pods
    world.state.reservations.put_back(a)
    assert world.state.reservations.reserve(a.spec, ["n0"]) is None  # only together with its group
    assert world.admit() == ["a"]
    assert a.stage is b.stage is PodStage.RESERVED


def test_the_last_pod_of_a_group_starts_after_the_others_have_succeeded_and_a_later_run_starts_together() -> None:
    world = GroupWorld(gpus=2)
    world.member("a", 1000, 2, ended="2026-01-01T00:01:00Z")
    world.member("late", 1000, 2)
    assert world.admit() == ["late"]
    world.state.drop_pod("uid-late")
    world.state.drop_pod("uid-a")
    world.member("a", 1000, 2, ended="2025-12-31T23:00:00Z")
    world.member("b", 1000, 2)
    assert world.admit() == []  # the pod that succeeded belongs to an earlier run


def test_pods_that_succeeded_are_forgotten_when_they_are_deleted_or_missing_from_a_list() -> None:
    world = GroupWorld(gpus=2)
    for gone in ("deleted", "missing"):
        world.member(gone, 1000, 2, ended="2026-01-01T00:01:00Z")
    world.member("late", 1000, 2)
    world.state.drop_pod("uid-deleted")
    world.state.pods.begin_list()
    assert world.state.pods.missing_from({"uid-late"}) == ["uid-missing"]
    world.state.drop_pod("uid-missing")
    assert world.admit() == []
