"""What was lent comes back: who leaves, and who does not."""

from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.preemption import Disruption, choose_disruption, choose_for_group
from milligpu.cluster.shrink import largest_share
from milligpu.model import names
from milligpu.model.gpu_queue import GpuQueue, Quota
from milligpu.model.units import Milli
from milligpu.queues.reclaim import lent_by_others, reclaims
from milligpu.status.queues import QueueOverview
from milligpu.wire.kubernetes import KubeGpuQueue, ObjectMeta
from tests.queues.test_cluster_lines import World


def guaranteed(name: str, milli: int) -> GpuQueue:
    return GpuQueue(name, guarantee=Quota(Milli(milli)))


def run(world: World, name: str, milli: int, queue: str) -> None:
    """A pod that was admitted and bound."""
    world.put(name, milli, queue=queue, gates=())
    entry = world.state.pods[f"uid-{name}"]
    grant = world.state.reservations.nominate(entry)
    assert grant is not None
    entry.stage = PodStage.BOUND
    world.state.shares.nominated.pop(entry.spec.pod.uid)


def test_a_queue_never_loses_its_guarantee() -> None:
    world = World(guaranteed("x", 500), guaranteed("y", 500))
    run(world, "old", 400, "x")
    run(world, "young", 300, "x")
    run(world, "youngest", 100, "x")
    # 800 are held and 500 are guaranteed: 300 can go, and the youngest go first.
    assert lent_by_others(world.state, world.view().lines).pods == {"uid-youngest"}


def test_the_owner_gets_back_what_it_lent_and_a_borrower_gets_nothing() -> None:
    world = World(guaranteed("x", 500), guaranteed("y", 500))
    run(world, "old", 500, "x")
    run(world, "young", 500, "x")
    world.put("more", 500, queue="x")
    world.put("owner", 500, queue="y")
    view = world.view()
    assert list(view.admit()) == []
    chosen = {
        entry.spec.pod.name: choose_disruption(world.state, entry.spec, ["n0"], rule)
        for (entry,), rule in reclaims(world.state, view)
    }
    assert chosen == {"more": None, "owner": Disruption("n0", ("uid-young",))}


def run_elastic(world: World, name: str, milli: int, queue: str, floor: int) -> None:
    """A bound pod of a queue that may be shrunk."""
    world.put(name, milli, queue=queue, gates=(), mib=1024, notes={names.FLOOR: str(floor)})
    entry = world.state.pods[f"uid-{name}"]
    grant = world.state.reservations.nominate(entry)
    assert grant is not None
    world.state.shares.nominated.pop(entry.spec.pod.uid)
    entry.stage = PodStage.BOUND
    world.state.pods.resizing[entry.spec.pod.uid] = entry


def test_a_borrower_is_shrunk_to_its_guarantee_before_anybody_is_evicted() -> None:
    world = World(guaranteed("x", 500), guaranteed("y", 500))
    run_elastic(world, "old", 900, "x", 300)
    run_elastic(world, "young", 100, "x", 50)
    world.put("owner", 400, queue="y", mib=1024)
    view = world.view()
    assert list(view.admit()) == []
    (((owner,), rule),) = reclaims(world.state, view)
    found = choose_disruption(world.state, owner.spec, ["n0"], rule)
    assert found is not None
    assert (found.victims, {uid: largest_share(each) for uid, each in found.shrunk.items()}) == (
        (),
        {"uid-old": 500},
    )


def test_no_queue_is_shrunk_below_its_guarantee() -> None:
    world = World(guaranteed("x", 800), guaranteed("y", 200))
    run_elastic(world, "old", 900, "x", 300)
    world.put("owner", 200, queue="y", mib=1024)
    world.put("other", 100, queue="y", gates=(), mib=1024)
    entry = world.state.pods["uid-other"]
    assert world.state.reservations.nominate(entry) is not None
    entry.stage = PodStage.BOUND
    view = world.view()
    assert list(view.admit()) == []
    assert [
        choose_disruption(world.state, each.spec, ["n0"], rule) for (each,), rule in reclaims(world.state, view)
    ] == [None]


def put_member(
    world: World, name: str, milli: int, priority: int, *, gates: tuple[str, ...] = (names.QUEUE,)
) -> None:
    """A pod of a group of two."""
    notes = {names.GROUP: "job", names.GROUP_MIN_COUNT: "2"}
    world.put(name, milli, queue="y", mib=1024, notes=notes, priority=priority, gates=gates)


def test_a_group_has_room_made_for_all_of_it_or_nobody_leaves() -> None:
    world = World(guaranteed("x", 0), guaranteed("y", 0), gpus=2)
    for name in ("a", "b"):
        run_elastic(world, name, 600, "x", 100)
    put_member(world, "one", 800, 10)
    put_member(world, "two", 800, 10)
    view = world.view()
    assert list(view.admit()) == []
    ((entries, rule),) = reclaims(world.state, view)
    assert [each.spec.pod.name for each in entries] == ["one", "two"]
    room = choose_for_group(world.state, [each.spec for each in entries], ["n0"], rule)
    assert room is not None
    assert set(room.victims) == {"uid-a", "uid-b"}
    world.state.is_protected = lambda entry: entry.spec.pod.name == "a"
    assert choose_for_group(world.state, [each.spec for each in entries], ["n0"], rule) is None


def test_what_leaves_for_a_group_is_kept_until_all_have_left_and_the_group_has_its_turn() -> None:
    world = World(guaranteed("x", 0), guaranteed("y", 0), gpus=2)
    for name in ("a", "b"):
        run_elastic(world, name, 600, "x", 100)
    put_member(world, "one", 800, 10)
    put_member(world, "two", 800, 10)
    view = world.view()
    assert list(view.admit()) == []
    ((entries, rule),) = reclaims(world.state, view)
    room = choose_for_group(world.state, [each.spec for each in entries], ["n0"], rule)
    assert room is not None
    world.state.reservations.begin_group_preemption(room.places, room.victims)
    world.put("third", 300, queue="", gates=(), mib=1024)
    third = world.state.pods["uid-third"]
    world.state.drop_pod("uid-a")
    assert world.state.reservations.nominate(third) is None
    assert world.admit() == []
    world.state.drop_pod("uid-b")
    assert world.state.reservations.nominate(third) is None
    assert world.admit() == ["one", "two"]
    assert world.state.reservations.preemption_of("uid-one") is None
    world.put("fourth", 200, queue="", gates=(), mib=1024)
    assert world.state.reservations.nominate(world.state.pods["uid-fourth"]) is not None


def test_explain_says_who_would_yield_to_a_group() -> None:
    world = World(guaranteed("x", 0), guaranteed("y", 0), gpus=2)
    for name in ("a", "b"):
        run_elastic(world, name, 600, "x", 100)
    put_member(world, "one", 800, 10)
    put_member(world, "two", 800, 10)
    queues = [KubeGpuQueue(ObjectMeta(name)) for name in ("x", "y")]
    said = QueueOverview(world.state, queues, world.now).explain("uid-two")
    assert said.startswith("2nd of 2 in y; ")
    assert said.endswith("; makes room for its group: evicts pod default/b, pod default/a")
