"""What was lent comes back: who leaves, and who does not."""

from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.preemption import Disruption, choose_disruption
from milligpu.model.gpu_queue import GpuQueue, Quota
from milligpu.model.units import Milli
from milligpu.queues.reclaim import lent_by_others, reclaims
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
        for entry, rule in reclaims(world.state, view)
    }
    assert chosen == {"more": None, "owner": Disruption("n0", ("uid-young",))}
