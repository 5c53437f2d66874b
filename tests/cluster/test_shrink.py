"""Shrinking before evicting: pods with a floor give up compute, as little as helps, and have it again later."""

import msgspec

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.preemption import (
    Disruption,
    choose_disruption,
    choose_for_kube_scheduler,
    lower_priority,
)
from milligpu.cluster.resize import begin_resize, end_resize, wanted_grant
from milligpu.cluster.shrink import is_shrinkable, largest_share, shrunk_grant
from milligpu.model import names
from milligpu.model.grant import Grant
from milligpu.model.units import Milli
from milligpu.wire import kubernetes
from tests.cluster.objects import pod
from tests.cluster.test_state import World


def see(world: World, name: str, milli: int, mib: int, priority: int = 0, **more: object) -> SchedulingSpec:
    """Show a pod; with `floor` it may be shrunk, and with `grant` it runs."""
    notes = {names.FLOOR: str(more["floor"])} if "floor" in more else {}
    notes |= {names.RESIZE: str(more["resize"])} if "resize" in more else {}
    grant = more.get("grant")
    assert grant is None or isinstance(grant, Grant)
    found = pod(name, milli, notes=notes, grant=grant, priority=priority)
    found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = str(mib)
    seen = world.pods.read(kubernetes.decode_pod(msgspec.json.encode(found)))
    world.state.put_pod(seen)
    return seen.spec


def run(world: World, name: str, milli: int, mib: int, priority: int = 0, **more: object) -> Grant:
    spec = see(world, name, milli, mib, priority, **more)
    grant = world.state.binds.begin(spec, "n0")
    assert grant is not None
    world.state.binds.end(spec.pod.uid, bound=True)
    see(world, name, milli, mib, priority, **more, grant=grant)
    return grant


def choose(world: World, spec: SchedulingSpec) -> Disruption | None:
    return choose_disruption(world.state, spec, world.names, lower_priority(spec))


def shrunk(found: Disruption | None) -> dict[str, int]:
    return {} if found is None else {uid: largest_share(grant) for uid, grant in found.shrunk.items()}


def test_a_pod_is_shrunk_by_as_much_as_is_needed_and_nobody_is_evicted() -> None:
    world = World()
    run(world, "elastic", 600, 1024, floor=100)
    run(world, "rigid", 400, 1024)
    found = choose(world, see(world, "high", 250, 1024, 10))
    assert found is not None
    assert (found.victims, shrunk(found)) == ((), {"uid-elastic": 350})
    assert world.free() == 0, "choosing changes nothing"


def test_what_the_floor_leaves_too_little_of_is_evicted() -> None:
    world = World()
    run(world, "elastic", 600, 1024, floor=300)
    run(world, "rigid", 400, 1024)
    found = choose(world, see(world, "high", 650, 1024, 10))
    assert found is not None
    assert (found.victims, shrunk(found)) == (("uid-rigid",), {"uid-elastic": 350})


def test_shrinking_does_not_help_where_memory_is_short() -> None:
    world = World()
    run(world, "elastic", 600, 12000, floor=100)
    run(world, "rigid", 400, 1024)
    found = choose(world, see(world, "high", 250, 8000, 10))
    assert found is not None
    assert (found.victims, shrunk(found)) == (("uid-elastic",), {})


def test_a_pod_is_shrunk_on_another_node_before_one_is_evicted_on_this() -> None:
    world = World(nodes=2)
    run(world, "rigid", 1000, 1024)
    grant = Grant("uid-elastic", "n1", run(World(nodes=1), "elastic", 1000, 1024, floor=100).containers)
    moved = {
        name: tuple(type(each)("GPU-n1-0", each.share) for each in shares)
        for name, shares in grant.containers.items()
    }
    see(world, "elastic", 1000, 1024, floor=100, grant=Grant("uid-elastic", "n1", moved))
    high = see(world, "high", 500, 1024, 10)
    assert shrunk(choose(world, high)) == {"uid-elastic": 500}
    assert choose_for_kube_scheduler(world.state, high, ["n0"]) is None, (
        "it cannot shrink pods, so it evicts nobody"
    )


def test_no_pod_of_the_same_priority_is_shrunk_nor_one_at_its_floor() -> None:
    world = World()
    grant = run(world, "elastic", 1000, 1024, floor=400)
    assert choose(world, see(world, "equal", 300, 1024)) is None
    see(world, "elastic", 1000, 1024, floor=400, grant=shrunk_grant(grant, Milli(400)))
    assert not is_shrinkable(world.state.pods["uid-elastic"])
    high = choose(world, see(world, "high", 900, 1024, 10))
    assert high is not None
    assert (high.victims, shrunk(high)) == (("uid-elastic",), {})


def test_what_is_freed_by_shrinking_is_kept_from_before_it_is_free() -> None:
    world = World()
    run(world, "elastic", 1000, 1024, floor=200)
    high = see(world, "high", 500, 1024, 10)
    found = choose(world, high)
    assert found is not None
    world.state.reservations.begin_preemption(high, found.node, found.victims, found.shrunk)
    entry = world.state.pods["uid-elastic"]
    begin_resize(world.state, entry, found.shrunk["uid-elastic"])
    end_resize(world.state, "uid-elastic", written=True)
    assert world.state.reservations.reserve(see(world, "third", 100, 1024, 5), ["n0"]) is None
    world.state.reservations.end_shrinking("uid-high")
    assert world.state.pods["uid-high"].node == "n0"
    assert world.free() == 0


def test_a_shrunk_pod_wants_its_share_again_or_what_it_was_resized_to() -> None:
    world = World()
    grant = run(world, "elastic", 600, 1024, floor=200)
    entry = world.state.pods["uid-elastic"]
    assert wanted_grant(world.state, entry) is None
    less = shrunk_grant(grant, Milli(200))
    see(world, "elastic", 600, 1024, floor=200, grant=less)
    again = wanted_grant(world.state, entry)
    assert again is not None
    assert (again.containers, again.generation) == (grant.containers, 3)
    see(world, "elastic", 600, 1024, floor=200, grant=less, resize='{"main": {"milli": 400}}')
    resized = wanted_grant(world.state, entry)
    assert resized is not None
    assert largest_share(resized) == 400
