"""Preemption by GPU: victims that make room, or none, and nobody else takes what they leave."""

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.preemption import (
    PreemptionRule,
    alone_of_lower_priority,
    choose_disruption,
    choose_for_kube_scheduler,
    evicted_with,
)
from milligpu.cluster.reservations import RESERVED_S
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from tests.cluster.objects import pod
from tests.cluster.test_state import World, kubernetes
from tests.cluster.test_state import json as text


def choose_victims(
    state: ClusterState, spec: SchedulingSpec, node: str, rule: PreemptionRule | None = None
) -> list[str]:
    found = choose_disruption(state, spec, [node], rule or alone_of_lower_priority(spec))
    return [] if found is None else list(found.victims)


def observed(world: World, name: str, milli: int, priority: int, grant: Grant | None = None) -> SchedulingSpec:
    found = pod(name, milli, grant=grant, priority=priority)
    seen = world.pods.read(kubernetes.decode_pod(text.dumps(found).encode()))
    world.state.put_pod(seen)
    return seen.spec


def place(world: World, name: str, milli: int, priority: int = 0) -> str:
    """Bind a pod and return its GPU."""
    spec = observed(world, name, milli, priority)
    grant = world.state.binds.begin(spec, "n0")
    assert grant is not None
    world.state.binds.end(spec.pod.uid, bound=True)
    return grant.gpus[0]


def full(priority: int = 0) -> tuple[World, dict[str, str]]:
    """Two GPUs with 600 and 400 each."""
    world = World(cards=2)
    names = {"a": 600, "b": 600, "c": 400, "d": 400}
    return world, {name: place(world, name, milli, priority) for name, milli in names.items()}


def test_the_victims_make_room_on_one_gpu() -> None:
    world, gpus = full()
    victims = choose_victims(world.state, observed(world, "high", 500, 10), "n0")
    assert len(victims) == 1
    assert victims[0] in {"uid-a", "uid-b"}
    assert gpus["a"] != gpus["b"]


def test_no_pod_is_evicted_where_that_makes_no_room() -> None:
    world = World(cards=2)
    place(world, "a", 600, 10)
    place(world, "b", 600, 10)
    place(world, "c", 400)
    place(world, "d", 400)
    spec = observed(world, "high", 500, 10)
    assert choose_victims(world.state, spec, "n0") == []
    assert choose_for_kube_scheduler(world.state, spec, ["n0", "unknown"]) is None


def test_choosing_victims_changes_nothing() -> None:
    world, _ = full()
    before = dict(world.state.placer.snapshot.holdings)
    choose_victims(world.state, observed(world, "high", 500, 10), "n0")
    assert world.state.placer.snapshot.holdings == before


def test_what_a_victim_leaves_is_kept_for_the_pod_that_it_was_evicted_for() -> None:
    world, _ = full()
    high = observed(world, "high", 500, 10)
    victims = choose_victims(world.state, high, "n0")
    world.state.reservations.begin_preemption(high, "n0", victims)
    other = observed(world, "other", 1000, 20)
    assert victims[0] not in choose_victims(world.state, other, "n0")
    world.state.drop_pod(victims[0])
    assert world.state.reservations.reserve(observed(world, "third", 500, 0), ["n0"]) is None
    assert world.state.reservations.reserve(high, ["n0"]) is not None


def test_a_share_is_kept_until_the_last_victim_is_gone_and_no_longer_than_a_minute() -> None:
    world, gpus = full()
    high = observed(world, "high", 1000, 10)
    victims = choose_victims(world.state, high, "n0")
    assert len({gpus[uid.removeprefix("uid-")] for uid in victims}) == 1
    world.state.reservations.begin_preemption(high, "n0", victims)
    world.state.drop_pod(victims[0])
    third = observed(world, "third", 300, 0)
    assert world.state.reservations.reserve(third, ["n0"]) is None
    world.time += 60
    world.state.expire()
    assert world.state.reservations.reserve(third, ["n0"]) is not None


def test_a_second_question_about_a_pod_gets_the_same_victims() -> None:
    world, _ = full()
    high = observed(world, "high", 500, 10)
    first = choose_for_kube_scheduler(world.state, high, ["n0"])
    assert first is not None
    world.state.reservations.begin_preemption(high, first.node, first.victims)
    assert choose_for_kube_scheduler(world.state, high, ["n0"]) == first


def test_what_the_pod_needs_besides_its_victims_is_kept_from_the_beginning() -> None:
    world = World()
    place(world, "low", 600)
    high = observed(world, "high", 900, 10)
    world.state.reservations.begin_preemption(high, "n0", choose_victims(world.state, high, "n0"))
    assert world.state.reservations.reserve(observed(world, "third", 200, 0), ["n0"]) is None
    assert world.state.reservations.reserve(observed(world, "fourth", 100, 0), ["n0"]) is not None
    world.state.drop_pod("uid-low")
    assert {each.spec.pod.name for each in world.state.pods.in_stage(PodStage.RESERVED)} == {"high", "fourth"}


def test_no_pod_is_evicted_for_one_that_was_given_a_place_and_is_not_bound() -> None:
    world, _ = full()
    world.state.drop_pod("uid-a")
    high = observed(world, "high", 500, 10)
    assert world.state.reservations.reserve(high, ["n0"]) is not None
    world.time += RESERVED_S
    world.state.expire()
    place(world, "a", 600)
    assert choose_for_kube_scheduler(world.state, high, ["n0"]) is None


def test_no_pod_is_evicted_for_one_that_has_a_place_already() -> None:
    world, _ = full()
    high = observed(world, "high", 500, 10)
    chosen = choose_for_kube_scheduler(world.state, high, ["n0"])
    assert chosen is not None
    world.state.reservations.begin_preemption(high, chosen.node, chosen.victims)
    for victim in chosen.victims:
        world.state.drop_pod(victim)
    entry = world.state.entry("uid-high")
    assert entry is not None
    assert entry.stage is PodStage.RESERVED
    assert choose_for_kube_scheduler(world.state, high, ["n0"]) is None


def test_a_pod_that_is_being_deleted_leaves_its_share_before_others_are_evicted() -> None:
    world, _ = full()
    for name in ("a", "b"):
        entry = world.state.entry(f"uid-{name}")
        assert entry is not None
        entry.leaving = name == "b"
    assert choose_victims(world.state, observed(world, "high", 500, 10), "n0") == ["uid-b"]


def test_of_equal_pods_the_youngest_leaves() -> None:
    world = World()
    for name in ("first", "second"):
        place(world, name, 500)
    assert choose_victims(world.state, observed(world, "high", 500, 10), "n0") == ["uid-second"]


def anybody(_: object) -> bool:
    return True


def test_a_group_leaves_as_a_whole_or_not_at_all() -> None:
    world = World(cards=2)
    notes = {names.GROUP: "job", names.GROUP_SIZE: "2"}
    for name, gpu in (("a", "GPU-n0-0"), ("b", "GPU-n0-1")):
        shares = (GpuShare(gpu, Share(Milli(1000), Mib(16384), Milli(1000))),)
        found = pod(name, 1000, notes=notes, grant=Grant(f"uid-{name}", "n0", {"main": shares}))
        world.state.put_pod(world.pods.read(kubernetes.decode_pod(text.dumps(found).encode())))
    spec = observed(world, "high", 500, 10)
    assert choose_victims(world.state, spec, "n0") == [], "kube-scheduler would leave the other one running"
    (victim,) = choose_victims(world.state, spec, "n0", PreemptionRule(anybody))
    (other,) = evicted_with(world.state, [victim])
    assert {victim, other.spec.pod.uid} == {"uid-a", "uid-b"}
    world.state.is_protected = lambda entry: entry.spec.pod.uid == "uid-b"
    assert choose_victims(world.state, spec, "n0", PreemptionRule(anybody)) == []


def test_a_protected_pod_is_not_evicted() -> None:
    world, _ = full()
    world.state.is_protected = lambda entry: entry.spec.pod.uid == "uid-a"
    assert choose_victims(world.state, observed(world, "high", 500, 10), "n0") == ["uid-b"]
    world.state.is_protected = lambda _: True
    assert choose_victims(world.state, observed(world, "high", 500, 10), "n0") == []
