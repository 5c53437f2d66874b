"""Decisions on clusters small enough to see through."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from milligpu.model.affinity import AffinityLabels
from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.gpu import Gpu, GpuLink, GpuState, Node, SharingMode
from milligpu.model.gpu_class import GpuClass, GpuClasses
from milligpu.model.grant import Grant, NoFit
from milligpu.model.policy import PlacementStrategy, SharePolicy
from milligpu.model.reasons import Reason
from milligpu.model.request import ContainerKind, ContainerRequest, PodRequest, Share, ShareRequest
from milligpu.model.requirements import Requirements
from milligpu.model.units import Mib, Milli
from milligpu.model.versions import parse_version
from milligpu.placement.decide import Placer
from milligpu.placement.fit import RequestKey
from milligpu.placement.score import BaselineStrategy, PricedScore
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.placement.workload import ENTRIES_MAX, ExpectedWorkload, whole_gpus
from tests.placement.clusters import CARD, node, pod

OLD, NEW = parse_version("v", "535.54.03"), parse_version("v", "550.54.15")


def place(placer: Placer, request: PodRequest) -> Grant:
    answer = placer.decide(request)
    assert isinstance(answer, Grant), answer
    placer.commit(request, answer)
    return answer


def reasons(placer: Placer, request: PodRequest) -> set[Reason]:
    answer = placer.decide(request)
    assert isinstance(answer, NoFit), answer
    return {refusal.reason for refusal in answer.refusals}


def placer_of(*nodes: Node, strategy: PlacementStrategy | BaselineStrategy = PlacementStrategy.PACKING) -> Placer:
    return Placer(Snapshot.of(nodes), strategy)


def test_a_grant_names_the_gpu_and_the_amounts() -> None:
    grant = place(placer_of(node("a")), pod("p", 300))
    (held,) = grant.containers["main"]
    assert (grant.node, grant.uid, held.gpu) == ("a", "p", "GPU-a-0")
    assert held.share == Share(Milli(300), Mib(16384 * 300 // 1000), Milli(300))


def test_a_whole_gpu_must_be_empty() -> None:
    placer = placer_of(node("a", 2))
    first = place(placer, pod("share", 100)).gpus
    whole = place(placer, pod("whole", 1000))
    assert whole.containers["main"][0].share.whole
    assert whole.gpus != first
    assert reasons(placer, pod("another", 1000)) == {Reason.INSUFFICIENT_CORE}


def test_memory_counts_as_well_as_compute() -> None:
    placer = placer_of(node("a"))
    place(placer, pod("p", 100, mib=Mib(16000)))
    answer = placer.decide(pod("q", 100))
    assert isinstance(answer, NoFit)
    (refusal,) = answer.refusals
    assert (refusal.reason, refusal.wanted, refusal.best) == (Reason.INSUFFICIENT_MEMORY, 1638, 384)


def test_init_containers_count_only_at_their_peak() -> None:
    placer = placer_of(node("a"))
    init = ContainerRequest("init", ShareRequest(1, Milli(700)), ContainerKind.INIT)
    main = ContainerRequest("main", ShareRequest(1, Milli(500)))
    grant = place(placer, replace(pod("p"), containers=(init, main)))
    assert set(grant.containers) == {"init", "main"}
    assert placer.snapshot.milli[0, 0] == 300


def test_two_containers_that_do_not_fit_one_gpu_get_two() -> None:
    placer = placer_of(node("a", 3))
    shares = tuple(
        ContainerRequest(name, ShareRequest(1, Milli(milli))) for name, milli in (("x", 600), ("y", 700))
    )
    grant = place(placer, replace(pod("p"), containers=shares))
    assert grant.containers["x"][0].gpu != grant.containers["y"][0].gpu
    assert sorted(placer.snapshot.milli[0, :3].tolist()) == [300, 400, 1000]


@pytest.mark.parametrize(
    ("card", "request_", "reason"),
    [
        ({"state": GpuState.UNHEALTHY}, pod("p", 100), Reason.UNHEALTHY),
        ({"state": GpuState.CORDONED}, pod("p", 100), Reason.CORDONED),
        ({"mode": SharingMode.WHOLE}, pod("p", 100), Reason.MODE_MISMATCH),
        ({"mode": SharingMode.MIG}, pod("p", 1000), Reason.MODE_MISMATCH),
        ({"milli": Milli(500)}, pod("p", 600), Reason.TOO_LARGE),
        ({"reserved": Milli(100)}, pod("p", 1000), Reason.TOO_LARGE),
        ({}, pod("p", 100, policy=SharePolicy.EQUAL), Reason.POLICY_MISMATCH),
        ({}, pod("p", 100, requirements=Requirements(models=("A100",))), Reason.MODEL_MISMATCH),
        ({}, pod("p", 100, requirements=Requirements(uuids=("GPU-z",))), Reason.UUID_MISMATCH),
        ({}, pod("p", 100, requirements=Requirements(ecc=True)), Reason.NO_ECC),
        ({}, pod("p", 100, requirements=Requirements(memory_min=Mib(40000))), Reason.MEMORY_SIZE),
        ({}, pod("p", 100, requirements=Requirements(driver_min=NEW)), Reason.DRIVER_UNKNOWN),
        ({"driver": OLD}, pod("p", 100, requirements=Requirements(driver_min=NEW)), Reason.DRIVER),
        ({"cuda": OLD}, pod("p", 100, requirements=Requirements(cuda_min=NEW)), Reason.CUDA),
        ({}, pod("p", 1000, 2), Reason.INSUFFICIENT_GPUS),
        ({}, pod("p", 100, cpu_milli=9000), Reason.NODE_CPU),
        ({}, pod("p", 100, memory_mib=9000), Reason.NODE_MEMORY),
    ],
)
def test_each_constraint_refuses_with_its_own_reason(
    card: dict[str, Any], request_: PodRequest, reason: Reason
) -> None:
    assert reasons(placer_of(node("a", cpu=8000, memory=8000, **card)), request_) == {reason}


def test_of_nodes_with_the_same_gpus_the_one_with_the_required_driver_is_chosen() -> None:
    for driver in (None, OLD):
        placer = placer_of(node("a", driver=driver), node("b", driver=NEW), node("c", driver=driver))
        assert place(placer, pod("p", 100, requirements=Requirements(driver_min=NEW))).node == "b"


def test_a_node_without_gpus_is_refused_as_such() -> None:
    assert reasons(placer_of(node("a", 0)), pod("p", 100)) == {Reason.NO_GPU}


def test_labels_pull_together_keep_apart_and_exclude() -> None:
    placer = placer_of(node("a", 3))
    together = AffinityLabels(affinity="team")
    first, second = (place(placer, pod(name, 100, locality=together)).gpus for name in ("a1", "a2"))
    assert first == second
    apart = AffinityLabels(anti_affinity="db")
    third, fourth = (place(placer, pod(name, 100, locality=apart)).gpus for name in ("b1", "b2"))
    assert third != fourth
    placer = placer_of(node("a", 1))
    place(placer, pod("c1", 100, locality=AffinityLabels(exclusion="alone")))
    assert reasons(placer, pod("c2", 100)) == {Reason.EXCLUSION}
    place(placer, pod("c3", 100, locality=AffinityLabels(exclusion="alone")))
    assert reasons(placer, pod("c4", 100, locality=AffinityLabels(exclusion="other"))) == {Reason.EXCLUSION}


def test_a_gpu_loses_a_label_with_its_last_holder() -> None:
    placer = placer_of(node("a"))
    place(placer, pod("c1", 100, locality=AffinityLabels(exclusion="alone")))
    placer.release("c1")
    place(placer, pod("c2", 100))


def test_a_full_gpu_with_the_affinity_label_refuses_rather_than_scatters() -> None:
    placer = placer_of(node("a", 2))
    place(placer, pod("p", 900, locality=AffinityLabels(affinity="team")))
    assert reasons(placer, pod("q", 200, locality=AffinityLabels(affinity="team"))) == {
        Reason.INSUFFICIENT_CORE,
        Reason.AFFINITY,
    }


def _wired(name: str) -> Node:
    """Cards 0 and 2, 1 and 3 have NVLink; 0 and 1, 2 and 3 share a NUMA node."""
    uuids = [f"GPU-{name}-{at}" for at in range(4)]
    gpus = tuple(
        Gpu(uuid, "V100", CARD, numa=at // 2, links={uuids[(at + 2) % 4]: GpuLink("NV", 2)})
        for at, uuid in enumerate(uuids)
    )
    return Node(name, gpus)


def test_nvlink_and_numa_hold_between_the_gpus_of_a_request() -> None:
    linked = pod("p", 1000, 2, requirements=Requirements(nvlink=True))
    assert set(place(placer_of(_wired("a")), linked).gpus) in ({"GPU-a-0", "GPU-a-2"}, {"GPU-a-1", "GPU-a-3"})
    near = pod("p", 1000, 2, requirements=Requirements(numa=True))
    assert set(place(placer_of(_wired("a")), near).gpus) in ({"GPU-a-0", "GPU-a-1"}, {"GPU-a-2", "GPU-a-3"})
    both = pod("p", 1000, 2, requirements=Requirements(numa=True, nvlink=True))
    assert reasons(placer_of(_wired("a")), both) == {Reason.NO_NVLINK}
    three = pod("p", 1000, 3, requirements=Requirements(numa=True))
    assert reasons(placer_of(_wired("a")), three) == {Reason.NUMA_SPLIT}


def test_several_whole_gpus_are_the_best_linked_even_without_a_requirement() -> None:
    assert set(place(placer_of(_wired("a")), pod("p", 1000, 2)).gpus) in (
        {"GPU-a-0", "GPU-a-2"},
        {"GPU-a-1", "GPU-a-3"},
    )


def test_topology_prefers_the_node_with_links() -> None:
    placer = placer_of(node("plain", 4), _wired("wired"), strategy=PlacementStrategy.TOPOLOGY)
    assert place(placer, pod("p", 1000, 2)).node == "wired"


def test_a_class_stands_for_its_requirements() -> None:
    snapshot = Snapshot.of([node("a"), node("b", model="A100")])
    placer = Placer(snapshot, classes=GpuClasses([GpuClass("gold", Requirements(models=("A100",)))]))
    assert place(placer, pod("p", 100, gpu_class="gold")).node == "b"
    with pytest.raises(
        BadRequest, match="class: invalid value 'silver': must be the name of a GpuClass; existing classes: gold"
    ):
        placer.decide(pod("q", 100, gpu_class="silver"))


def test_only_the_named_nodes_are_looked_at() -> None:
    placer = placer_of(node("a"), node("b"))
    answer = placer.decide(pod("p", 100), among=["b", "unknown"])
    assert isinstance(answer, Grant)
    assert answer.node == "b"
    refused = placer.decide(pod("p", 100, 2), among=["b"])
    assert isinstance(refused, NoFit)
    assert refused.nodes == 1
    assert {refusal.node for refusal in refused.refusals} == {"b"}


def test_a_request_may_choose_its_strategy() -> None:
    placer = placer_of(node("a", 2))
    place(placer, pod("p", 500))
    packed = placer.decide(pod("q", 500))
    spread = placer.decide(pod("q", 500, strategy=PlacementStrategy.SPREAD))
    assert isinstance(packed, Grant)
    assert isinstance(spread, Grant)
    assert packed.gpus != spread.gpus


def test_best_fit_takes_the_fullest_gpu_and_spread_the_emptiest() -> None:
    placer = placer_of(node("a", 3))
    snapshot = placer.snapshot
    for at, milli in enumerate((300, 600, 100)):
        share = placer.holding(pod(f"p{at}", milli), placer.decide(pod(f"p{at}", milli)))  # type: ignore[arg-type]
        snapshot.take(Holding(f"p{at}", "a", ((f"GPU-a-{at}", share.demands[0][1]),)))
    best = placer.decide(pod("q", 300, strategy=PlacementStrategy.BEST_FIT))
    wide = placer.decide(pod("q", 300, strategy=PlacementStrategy.SPREAD))
    assert isinstance(best, Grant)
    assert isinstance(wide, Grant)
    assert (best.gpus, wide.gpus) == (("GPU-a-1",), ("GPU-a-2",))


def test_packing_keeps_a_whole_node_for_requests_that_need_one() -> None:
    target = ExpectedWorkload({whole_gpus(4, 4000): 1.0, RequestKey.of(pod("x", 500, cpu_milli=1000)): 9.0})
    nodes = [node(name, 4, cpu=64000, memory=1000) for name in "abc"]
    placer = Placer(Snapshot.of(nodes), target=target)
    used = {place(placer, pod(f"p{at}", 500, cpu_milli=1000)).node for at in range(8)}
    assert len(used) == 1


def test_packing_saves_a_scarce_model_for_requests_that_name_it() -> None:
    named = pod("n", 1000, cpu_milli=1000, requirements=Requirements(models=("A100",)))
    anyone = pod("p", 1000, cpu_milli=1000)
    target = ExpectedWorkload({RequestKey.of(named): 1.0, RequestKey.of(anyone): 1.0})
    placer = Placer(
        Snapshot.of([node("a", 2, model="A100", cpu=9000, memory=1), node("b", 2, cpu=9000, memory=1)]),
        target=target,
    )
    assert {place(placer, replace(anyone, pod=replace(anyone.pod, uid=f"u{at}"))).node for at in range(2)} == {"b"}


def test_cpu_only_pods_leave_the_cpu_that_gpus_wait_for() -> None:
    large, small = pod("g", 1000, 2, cpu_milli=12000), pod("c", cpu_milli=5000)
    target = ExpectedWorkload({RequestKey.of(large): 2.0, RequestKey.of(small): 3.0})
    nodes = [node(name, 2, cpu=22000, memory=1) for name in ("x", "y")]
    placer = Placer(Snapshot.of(nodes), target=target)
    for at, each in enumerate((large, small, small, small, large)):
        place(placer, replace(each, pod=replace(each.pod, uid=f"u{at}")))


def test_quality_does_not_depend_on_names_or_order() -> None:
    """Renaming and reordering nodes changes who wins ties, not how many pods find a place."""
    sizes = [300, 500, 700, 1000, 200, 600, 400, 1000, 800, 100] * 3

    def packed(names: list[str]) -> int:
        placer = Placer(Snapshot.of([node(name, 4, cpu=64000, memory=1) for name in names]))
        for at, milli in enumerate(sizes):
            place(placer, pod(f"p{at}", milli, cpu_milli=2000))
        residue = placer.snapshot.residue
        return int((residue == 1000).sum())

    assert len({packed(names) for names in (["a", "b", "c", "d", "e"], ["e", "x", "q", "d", "1"])}) == 1


def test_ties_are_drawn_among_all_equals() -> None:
    placer = placer_of(*(node(name) for name in "abcdefgh"))
    chosen = {answer.node for at in range(100) if isinstance(answer := placer.decide(pod(f"p{at}", 100)), Grant)}
    assert len(chosen) == 8


def test_fgd_breaks_ties_by_name() -> None:
    placer = placer_of(node("b"), node("a"), node("c"), strategy=BaselineStrategy.FGD)
    assert place(placer, pod("p", 100)).node == "a"


def test_the_random_strategy_follows_its_generator() -> None:
    def nodes_of(seed: int) -> list[str]:
        snapshot = Snapshot.of([node(name) for name in "abcdef"])
        placer = Placer(snapshot, BaselineStrategy.RANDOM, dice=np.random.default_rng(seed))
        return [answer.node for _ in range(20) if isinstance(answer := placer.decide(pod("p", 100)), Grant)]

    assert nodes_of(1) == nodes_of(1)
    assert nodes_of(1) != nodes_of(2)


def test_nodes_and_gpu_states_may_change_between_decisions() -> None:
    placer = placer_of(node("a"))
    place(placer, pod("p", 1000))
    placer.snapshot.add(node("b", model="new"))
    assert place(placer, pod("q", 1000)).node == "b"
    placer.snapshot.remove("b")
    assert "q" not in placer.snapshot.holdings
    placer.release("p")
    placer.snapshot.set_state("a", "GPU-a-0", GpuState.UNHEALTHY)
    assert reasons(placer, pod("r", 100)) == {Reason.UNHEALTHY}
    placer.snapshot.set_state("a", "GPU-a-0", GpuState.OK)
    place(placer, pod("r", 100))


def test_a_grant_that_no_longer_fits_is_refused_unless_it_is_forced() -> None:
    placer = placer_of(node("a"))
    stale = placer.decide(pod("p", 600))
    assert isinstance(stale, Grant)
    place(placer, pod("q", 600))
    with pytest.raises(NoCapacity, match="a/GPU-a-0 has no room left for p"):
        placer.commit(pod("p", 600), stale)
    placer.snapshot.take(placer.holding(pod("p", 600), stale), force=True)
    assert placer.snapshot.milli[0, 0] == -200
    assert reasons(placer, pod("r", 1)) == {Reason.INSUFFICIENT_CORE}


def test_an_unknown_pod_or_gpu_cannot_be_changed() -> None:
    snapshot = Snapshot.of([node("a")])
    with pytest.raises(BadRequest, match="pod: invalid value 'ghost'"):
        snapshot.release("ghost")
    with pytest.raises(BadRequest, match="node: invalid value 'b'"):
        snapshot.take(Holding("p", "b", ()))
    with pytest.raises(BadRequest, match="gpu: invalid value 'a/GPU-z'"):
        snapshot.set_state("a", "GPU-z", GpuState.OK)
    with pytest.raises(BadRequest, match="a name that no other node has"):
        snapshot.add(node("a"))


@pytest.mark.parametrize(
    ("request_", "near"),
    [
        (pod("p", 900), "0.4 GPU"),
        (pod("p", 1000), "0.4 GPU"),
        (pod("p", 200, 3), "2 x 0.2 GPU"),
        (pod("p", 100, cpu_milli=5000), "4000m CPU"),
        (pod("p", 100, requirements=Requirements(ecc=True)), ""),
    ],
)
def test_the_nearest_request_says_what_would_fit(request_: PodRequest, near: str) -> None:
    placer = placer_of(node("a", 2, cpu=4000, memory=100))
    place(placer, pod("x", 600))
    place(placer, pod("y", 700))
    answer = placer.decide(request_)
    assert isinstance(answer, NoFit)
    assert answer.nearest == near


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        (ShareRequest(1, Milli(300), Mib(9000)), "0.3 GPU with 4Gi"),
        (ShareRequest(1, Milli(300)), "0.3 GPU with 4Gi"),
        (ShareRequest(1, Milli(900), Mib(2000)), "0.5 GPU with 2000Mi"),
        (ShareRequest(1, Milli(900), Mib(9000)), "0.5 GPU with 4Gi"),
        (ShareRequest(1, mib=Mib(9000)), "4Gi"),
        (ShareRequest(1, Milli(900)), "0.5 GPU with 4Gi"),
        (ShareRequest(1, Milli(300), card_memory=Milli(500)), "0.3 GPU with 0.25 of the GPU's memory"),
    ],
)
def test_the_nearest_request_changes_only_what_does_not_fit(asked: ShareRequest, near: str) -> None:
    """Half of the compute is free, and a quarter of the memory."""
    placer = placer_of(node("a"))
    place(placer, pod("holder", 500, mib=Mib(12288)))
    answer = placer.decide(replace(pod("p"), containers=(ContainerRequest("main", asked),)))
    assert isinstance(answer, NoFit)
    assert answer.nearest == near


def test_old_requests_weigh_less_and_the_list_stays_short() -> None:
    target = ExpectedWorkload(half_life=10)
    old, new = (RequestKey.of(pod("p", milli)) for milli in (100, 200))
    for _ in range(10):
        target.observe(old)
    for _ in range(10):
        target.observe(new)
    assert target.counts()[new] / target.counts()[old] == pytest.approx(2.0)
    for cpu in range(ENTRIES_MAX + 10):
        target.observe(RequestKey.of(pod("p", 100, cpu_milli=cpu)))
    assert len(target.counts()) <= ENTRIES_MAX


def test_a_known_workload_is_not_learned_over() -> None:
    key = RequestKey.of(pod("p", 100))
    target = ExpectedWorkload({key: 1.0})
    target.observe(RequestKey.of(pod("q", 200)))
    assert dict(target.counts()) == {key: 1.0}


def test_rows_that_were_not_scored_at_first_are_found_when_they_are_needed() -> None:
    placer = Placer(Snapshot.of([node(f"n{at}") for at in range(30)]), look_at=3)
    used = {place(placer, pod(f"p{at}", 1000)).node for at in range(30)}
    assert len(used) == 30
    assert reasons(placer, pod("last", 1000)) == {Reason.INSUFFICIENT_CORE}


def test_a_remembered_score_decides_as_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come into the same state are scored once: with and without, every pod goes to the same card."""

    def run() -> list[tuple[str, ...]]:
        dice = np.random.default_rng(11)
        mixed = [node(f"n{at}", 4, cpu=32_000) for at in range(12)]
        placer = placer_of(*mixed, *(node(f"m{at}", 2, cpu=8_000, model="T4") for at in range(6)))
        held: list[str] = []
        found: list[tuple[str, ...]] = []
        for number in range(400):
            if held and dice.random() < 0.4:
                placer.release(held.pop(int(dice.integers(len(held)))))
            request = pod(f"p{number}", int(dice.choice([100, 300, 300, 500, 1000])), cpu_milli=500)
            placer.observe(request)
            answer = placer.place(request)
            if answer is not None:
                placer.commit(request, answer)
                held.append(request.pod.uid or str(request.pod))
            found.append(() if answer is None else (answer.node, *answer.gpus))
        return found

    remembering = run()
    monkeypatch.setattr(PricedScore, "alike", False)
    assert run() == remembering
