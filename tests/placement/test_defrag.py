"""Plans that make room by moving pods."""

from milligpu.model.affinity import AffinityLabels
from milligpu.model.gpu import Node
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.defrag import DefragPlan, MoveRules, plan_room
from milligpu.placement.snapshot import Snapshot
from tests.placement.clusters import node, pod


def cluster(
    *held: tuple[str, str, int], nodes: tuple[Node, ...] | None = None
) -> tuple[Placer, dict[str, PodRequest]]:
    """Nodes a to d with a card each, and pods (name, node, milli) on them."""
    placer = Placer(Snapshot.of(nodes or tuple(node(name) for name in "abcd")))
    running = {name: pod(name, milli) for name, _, milli in held}
    for name, where, _ in held:
        grant = placer.decide(running[name], [where])
        assert isinstance(grant, Grant)
        placer.commit(running[name], grant)
    return placer, running


def carry_out(placer: Placer, running: dict[str, PodRequest], plan: DefragPlan, request: PodRequest) -> None:
    for move in plan.moves:
        assert placer.release(move.pod).node == move.source
        placer.commit(running[move.pod], move.grant)
    placer.commit(request, plan.grant)


FULL = (("a1", "a", 400), ("a2", "a", 300), ("b1", "b", 600), ("c1", "c", 600), ("d1", "d", 1000))


def test_no_moves_where_there_is_room() -> None:
    placer, running = cluster(*FULL)
    plan = plan_room(placer, pod("p", 300), running)
    assert plan is not None
    assert plan.moves == ()


def test_the_fewest_moves_make_room_and_can_be_carried_out() -> None:
    placer, running = cluster(*FULL)
    before = dict(placer.snapshot.holdings)
    request = pod("p", 600)
    plan = plan_room(placer, request, running)
    assert plan is not None
    assert [move.pod for move in plan.moves] == ["a2"]
    assert placer.snapshot.holdings == before
    carry_out(placer, running, plan, request)


def test_a_whole_gpu_is_emptied_when_its_pods_fit_elsewhere() -> None:
    placer, running = cluster(*FULL)
    request = pod("p", 1000)
    plan = plan_room(placer, request, running)
    assert plan is not None
    assert sorted(move.pod for move in plan.moves) == ["a1", "a2"]
    carry_out(placer, running, plan, request)


def test_none_where_moving_cannot_help() -> None:
    placer, running = cluster(("a1", "a", 600), ("b1", "b", 600), ("c1", "c", 600), ("d1", "d", 600))
    assert plan_room(placer, pod("p", 1000), running) is None


def test_pods_that_may_not_move_stay() -> None:
    placer, running = cluster(*FULL)
    request = pod("p", 600)

    def moved(rules: MoveRules) -> list[str] | None:
        plan = plan_room(placer, request, running, rules)
        return None if plan is None else [move.pod for move in plan.moves]

    assert moved(MoveRules(pinned=frozenset({"a2"}))) == ["a1"]
    assert moved(MoveRules(pinned=frozenset({"a1", "a2"}))) is None
    assert moved(MoveRules(moves_max=0)) is None
    assert moved(MoveRules(budget_of={"a1": "web", "a2": "web"}, budgets={"web": 0})) is None
    assert moved(MoveRules(budget_of={"a1": "web", "a2": "web"}, budgets={"web": 1})) == ["a2"]


def test_a_higher_priority_stays() -> None:
    placer = Placer(Snapshot.of([node("a"), node("b")]))
    running = {"low": pod("low", 400), "high": pod("high", 400, priority=9)}
    for name, where in (("low", "a"), ("high", "b")):
        grant = placer.decide(running[name], [where])
        assert isinstance(grant, Grant)
        placer.commit(running[name], grant)
    plan = plan_room(placer, pod("p", 1000), running, MoveRules(priority_max=5))
    assert plan is not None
    assert [move.pod for move in plan.moves] == ["low"]


def test_a_move_respects_labels() -> None:
    placer = Placer(Snapshot.of([node("a"), node("b")]))
    apart = AffinityLabels(anti_affinity="db")
    running = {name: pod(name, 300, locality=apart) for name in ("x", "y")}
    for request in running.values():
        grant = placer.decide(request)
        assert isinstance(grant, Grant)
        placer.commit(request, grant)
    assert plan_room(placer, pod("p", 1000), running) is None


def test_the_cpu_of_a_node_is_made_free_too() -> None:
    nodes = (node("a", 2, cpu=8000, memory=1), node("b", 2, cpu=8000, memory=1))
    placer = Placer(Snapshot.of(nodes))
    running = {"cpu-a": pod("cpu-a", cpu_milli=4000), "cpu-b": pod("cpu-b", cpu_milli=4000)}
    for name, where in (("cpu-a", "a"), ("cpu-b", "b")):
        grant = placer.decide(running[name], [where])
        assert isinstance(grant, Grant)
        placer.commit(running[name], grant)
    request = pod("p", 1000, cpu_milli=6000)
    plan = plan_room(placer, request, running)
    assert plan is not None
    assert len(plan.moves) == 1
    carry_out(placer, running, plan, request)
