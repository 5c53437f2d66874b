"""While a grant's next generation is being written both count: nothing is given twice, whatever becomes of it."""

from milligpu.cluster import resize as resizes
from milligpu.cluster.binds import DOUBT_S
from milligpu.cluster.pod_entry import PodEntry
from milligpu.model.gpu import GpuState
from milligpu.model.grant import Grant
from milligpu.model.reasons import Reason
from tests.cluster.objects import node
from tests.cluster.test_state import World


def asking(world: World, name: str, milli: int, text: str) -> tuple[PodEntry, Grant]:
    """A bound pod of this size that wants another one, and the grant that it wants."""
    grant = world.bind(name, milli)
    world.see(name, milli, grant, resize=text)
    entry = world.state.entry(f"uid-{name}")
    assert entry is not None
    wanted = resizes.wanted_grant(world.state, entry)
    assert wanted is not None
    return entry, wanted


def grow(milli: int) -> str:
    return f'{{"main": {{"milli": {milli}}}}}'


def test_growth_counts_from_before_it_is_written() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    assert resizes.missing_for(world.state, entry, wanted) == []
    resizes.begin_resize(world.state, entry, wanted)
    assert world.free() == 200
    resizes.end_resize(world.state, "uid-a", written=True)
    assert (world.free(), resizes.wanted_grant(world.state, entry)) == (200, None)


def test_a_shrunk_share_is_free_only_after_the_grant_is_written() -> None:
    world = World()
    entry, wanted = asking(world, "a", 800, grow(300))
    resizes.begin_resize(world.state, entry, wanted)
    assert world.free() == 200
    resizes.end_resize(world.state, "uid-a", written=True)
    assert world.free() == 700


def test_a_write_that_failed_changes_nothing() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin_resize(world.state, entry, wanted)
    resizes.end_resize(world.state, "uid-a", written=False)
    assert world.free() == 700
    assert resizes.wanted_grant(world.state, entry) == wanted


def test_after_a_write_without_an_answer_both_grants_count_until_it_is_settled() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin_resize(world.state, entry, wanted)
    resizes.mark_resize_unknown(world.state, "uid-a", world.time)
    world.see("a", 300, entry.grant, resize=grow(800))
    assert resizes.unknown_resizes(world.state, world.time) == []
    assert world.free() == 200, "it may be carried out yet"
    world.time += DOUBT_S
    assert resizes.unknown_resizes(world.state, world.time) == [entry]
    assert world.free() == 200, "it counts until the pod has been read again"
    resizes.end_resize(world.state, "uid-a", written=False)
    assert world.free() == 700
    world.see("a", 300, wanted, resize=grow(800))
    assert world.free() == 200, "it was carried out after all"


def test_an_outdated_pod_does_not_undo_a_written_grant() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    old = entry.grant
    resizes.begin_resize(world.state, entry, wanted)
    resizes.end_resize(world.state, "uid-a", written=True)
    world.see("a", 300, old, resize=grow(800))
    assert world.free() == 200


def test_growth_beyond_what_is_free_says_what_is_missing() -> None:
    world = World()
    world.bind("b", 500)
    entry, wanted = asking(world, "a", 300, grow(800))
    (missing,) = resizes.missing_for(world.state, entry, wanted)
    assert (missing.reason, missing.wanted, missing.best) == (Reason.INSUFFICIENT_CORE, 500, 200)
    assert "n0/GPU-n0-0 has 0.2 of 0.5 GPU that it wants in addition" in resizes.explain_resize([missing])


def test_a_pod_on_a_cordoned_or_unhealthy_gpu_can_shrink_but_not_grow() -> None:
    world = World()
    entry, more = asking(world, "a", 300, grow(400))
    world.put_node(node("n0", 1, state=GpuState.UNHEALTHY))
    assert [each.reason for each in resizes.missing_for(world.state, entry, more)] == [Reason.UNHEALTHY]
    entry.resize = grow(100)
    less = resizes.wanted_grant(world.state, entry)
    assert less is not None
    assert resizes.missing_for(world.state, entry, less) == []


def test_after_a_restart_the_last_written_grant_counts() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin_resize(world.state, entry, wanted)
    again = World()
    again.see("a", 300, wanted, resize=grow(800))
    assert again.free() == 200
    found = again.state.entry("uid-a")
    assert found is not None
    assert resizes.wanted_grant(world.state, found) is None


def test_a_grant_that_exceeds_the_request_is_recognized() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(301))
    assert resizes.exceeds_request(entry, wanted, world.state)
    entry.resize = grow(200)
    less = resizes.wanted_grant(world.state, entry)
    assert less is not None
    assert not resizes.exceeds_request(entry, less, world.state)


def test_a_resize_waits_for_a_node_that_is_gone() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    world.state.drop_node("n0")
    assert resizes.impossible_for(world.state, entry, wanted) is None
    assert [each.reason for each in resizes.missing_for(world.state, entry, wanted)] == [Reason.NO_GPU]
