"""What must hold whatever comes, checked against a ledger that shares no code with the placement."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.model.gpu import Node
from milligpu.model.grant import Grant, NoFit
from milligpu.model.policy import PlacementStrategy
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.nearest import nearest_fit
from milligpu.placement.score import STRATEGIES, BaselineStrategy, StrategyName
from milligpu.placement.snapshot import Snapshot
from tests.placement.clusters import Ledger, nodes, requests

quick = settings(max_examples=40)
_ARRAYS = ("cpu", "memory", "milli", "mib", "tenants", "open", "exclusion", "residue", "offered", "distinct")


def _state(snapshot: Snapshot) -> dict[str, list[object]]:
    """Everything about every node, in an order that does not depend on how it came about."""
    rows = [row for name in sorted(snapshot.nodes) for row in snapshot.rows_of[name]]
    # Labels are numbered as they are met: only whether they are the same matters.
    state = {name: getattr(snapshot, name)[rows].tolist() for name in _ARRAYS if name != "exclusion"}
    return state | {"exclusion": np.sign(snapshot.exclusion[rows]).tolist()}


def _play(placer: Placer, ledger: Ledger, asked: list[PodRequest], leave: list[int]) -> None:
    """Offer the requests; after some of them an earlier pod leaves."""
    for at, each in enumerate(asked):
        request = replace(each, pod=replace(each.pod, name=f"p{at}", uid=f"p{at}"))
        placer.observe(request)
        answer = placer.decide(request)
        if isinstance(answer, Grant):
            placer.commit(request, answer)
            ledger.pods[f"p{at}"] = request, answer
        gone = f"p{leave[at % len(leave)] % (at + 1)}" if leave else ""
        if gone in ledger.pods:
            placer.release(gone)
            del ledger.pods[gone]


plays = given(
    cluster=nodes(),
    asked=st.lists(requests(), min_size=1, max_size=12),
    leave=st.lists(st.integers(0, 11), max_size=4),
    strategy=st.sampled_from(STRATEGIES),
)


@quick
@plays
def test_no_gpu_and_no_node_is_ever_overcommitted(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    ledger = Ledger(cluster)
    _play(Placer(Snapshot.of(cluster), strategy), ledger, asked, leave)
    for node in cluster:
        assert min(ledger.cpu_memory(node)) >= 0
        for gpu in node.gpus:
            milli, mib = ledger.free(gpu)
            assert milli >= 0
            assert mib >= 0


@quick
@plays
def test_a_refusal_is_never_wrong_and_a_grant_is_always_allowed(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    ledger, placer = Ledger(cluster), Placer(Snapshot.of(cluster), strategy)
    _play(placer, ledger, asked[:-1], leave)
    last = replace(asked[-1], pod=replace(asked[-1].pod, name="last", uid="last"))
    assert isinstance(placer.decide(last), Grant) == ledger.can_place(last)


@quick
@plays
def test_every_refused_node_has_a_reason_and_the_nearest_request_would_fit(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    ledger, placer = Ledger(cluster), Placer(Snapshot.of(cluster), strategy)
    _play(placer, ledger, asked[:-1], leave)
    last = replace(asked[-1], pod=replace(asked[-1].pod, name="last", uid="last"))
    answer = placer.decide(last)
    if isinstance(answer, NoFit):
        assert {refusal.node for refusal in answer.refusals} == {node.name for node in cluster}
        smaller = nearest_fit(placer, last, np.arange(placer.snapshot.rows))
        assert (smaller is not None) == bool(answer.nearest)
        assert smaller is None or ledger.can_place(smaller)


@quick
@plays
def test_releasing_everything_restores_the_snapshot_exactly(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    snapshot, ledger = Snapshot.of(cluster), Ledger(cluster)
    _play(Placer(snapshot, strategy), ledger, asked, leave)
    for pod in list(ledger.pods):
        snapshot.release(pod)
    assert _state(snapshot) == _state(Snapshot.of(cluster))


@quick
@plays
def test_incremental_snapshots_and_scores_equal_rebuilt_ones(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    if strategy in {BaselineStrategy.RANDOM, BaselineStrategy.GPU_CLUSTERING}:
        strategy = PlacementStrategy.PACKING
    ledger, placer = Ledger(cluster), Placer(Snapshot.of(cluster), strategy)
    _play(placer, ledger, asked[:-1], leave)
    placer.reprice()
    rebuilt = Snapshot.of(reversed(cluster), placer.snapshot.holdings.values())
    assert _state(placer.snapshot) == _state(rebuilt)
    again = Placer(rebuilt, strategy, target=placer.target)
    last = replace(asked[-1], pod=replace(asked[-1].pod, name="last", uid="last"))
    assert placer.decide(last) == again.decide(last) or isinstance(placer.decide(last), NoFit)


@quick
@plays
def test_the_same_request_gets_the_same_grant(
    cluster: list[Node], asked: list[PodRequest], leave: list[int], strategy: StrategyName
) -> None:
    if strategy is BaselineStrategy.RANDOM:
        strategy = PlacementStrategy.PACKING
    placer = Placer(Snapshot.of(cluster), strategy)
    _play(placer, Ledger(cluster), asked[:-1], leave)
    assert placer.decide(asked[-1]) == placer.decide(asked[-1])
