"""Plan moves of running pods that make room for a request: as few as possible, within the rules.

A plan says which pods move where and where the request then fits. Each pod moves to room that is already free, so
the moves can be carried out in any order. Only `milligpu simulate` carries plans out; on a cluster no pod is moved.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations

from milligpu.model.footprint import GpuDemand
from milligpu.model.grant import Grant
from milligpu.model.policy import PRIORITY_MAX
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer, pod_key
from milligpu.placement.fit import RequestSpec
from milligpu.placement.snapshot import Holding

# A plan with more moves disturbs more than it helps.
MOVES_MAX = 8
# Of all places those that need the fewest moves are tried first; after this many failures another is unlikely.
_TRIES_MAX = 64
# Of a GPU with many tenants only the largest are considered: all sets of eight are 255.
_TENANTS_MAX = 8


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What may not move."""

    pinned: frozenset[str] = frozenset()
    """Pods that stay."""
    priority_max: int = PRIORITY_MAX
    """Pods above this priority stay."""
    budget_of: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pods to the disruption budget they count against."""
    budgets: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many pods of each budget may move; a budget that is not listed allows none."""
    moves_max: int = MOVES_MAX

    def allow(self, pods: frozenset[str]) -> bool:
        """Whether these may all move together."""
        if len(pods) > self.moves_max:
            return False
        used = Counter(self.budget_of[pod] for pod in pods if pod in self.budget_of)
        return all(count <= self.budgets.get(budget, 0) for budget, count in used.items())


@dataclass(frozen=True, slots=True)
class PodMove:
    """One pod and where it goes."""

    pod: str
    source: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """The moves, which can be made in any order, and what the request gets after them."""

    moves: tuple[PodMove, ...]
    grant: Grant


def plan_room(
    placer: Placer, request: PodRequest, running: Mapping[str, PodRequest], rules: MoveRules | None = None
) -> DefragPlan | None:
    """Return the fewest moves that make room for the request; None if the rules allow no plan.

    `running` has the request of every pod that may have to move; a pod that is not in it stays.
    """
    rules = rules or MoveRules()
    grant = placer.place(request)
    if grant is not None:
        return DefragPlan((), grant)
    places = sorted(_places(placer, request, running, rules), key=lambda place: (place[0], place[1], place[2]))
    for _, _, node, pods in places[:_TRIES_MAX]:
        found = _try(placer, request, running, node, pods)
        if found is not None:
            return found
    return None


def _places(
    placer: Placer, request: PodRequest, running: Mapping[str, PodRequest], rules: MoveRules
) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
    """Yield, for each node that could take the request, the number of moves, their size, its name, and the pods."""
    snap, spec = placer.snapshot, placer.spec(request)
    for node, rows in snap.rows_of.items():
        held = snap.holdings_on(node)
        free = [h for h in held if _may_move(h, running, rules)]
        for row in rows:
            pods = _evictions(placer, spec, request, row, free) if spec.allowed[int(snap.kind[row])] else None
            if pods and rules.allow(frozenset(pods)):
                moved = sum(demand.milli for h in free if h.pod in pods for _, demand in h.demands)
                yield len(pods), moved, node, tuple(sorted(pods))


def _may_move(holding: Holding, running: Mapping[str, PodRequest], rules: MoveRules) -> bool:
    if holding.pod not in running or holding.pod in rules.pinned:
        return False
    # Pods that name their GPUs would go back to them.
    return holding.priority <= rules.priority_max and running[holding.pod].requirements.uuids is None


def _evictions(
    placer: Placer, spec: RequestSpec, request: PodRequest, row: int, movable: list[Holding]
) -> frozenset[str] | None:
    """Return a few pods whose move makes room on the cheapest GPUs; None if moving pods does not help."""
    snap = placer.snapshot
    need = spec.needs[int(snap.kind[row])]
    tenants: dict[str, list[tuple[str, GpuDemand]]] = {}
    for holding in movable:
        for uuid, demand in holding.demands:
            tenants.setdefault(uuid, []).append((holding.pod, demand))
    costs: list[list[str]] = []
    for column, uuid in enumerate(snap.uuids[row]):
        if snap.open[row, column]:
            leaving = _leave(
                need.demands[0],
                int(snap.milli[row, column]),
                int(snap.mib[row, column]),
                int(snap.tenants[row, column]),
                tenants.get(uuid, []),
            )
            if leaving is not None:
                costs.append(leaving)
    if len(costs) < len(need.demands):
        return None
    pods = {pod for cost in sorted(costs, key=len)[: len(need.demands)] for pod in cost}
    return _make_cpu(snap.cpu[row], snap.memory[row], request, pods, movable)


def _leave(
    demand: GpuDemand, milli: int, mib: int, present: int, tenants: list[tuple[str, GpuDemand]]
) -> list[str] | None:
    """The fewest tenants of a GPU that must leave it, and of those the smallest."""

    def enough(leaving: Sequence[tuple[str, GpuDemand]]) -> bool:
        more_milli = sum(held.milli for _, held in leaving)
        more_mib = sum(held.mib for _, held in leaving)
        stay = demand.whole and present > len(leaving)
        return not stay and milli + more_milli >= demand.milli and mib + more_mib >= demand.mib

    if not enough(tenants):
        return None
    if demand.whole or enough(()):
        return [pod for pod, _ in tenants] if demand.whole else []
    some = sorted(tenants, key=lambda each: (-each[1].milli, -each[1].mib, each[0]))[:_TENANTS_MAX]
    for count in range(1, len(some) + 1):
        options = [each for each in combinations(some, count) if enough(each)]
        if options:
            best = min(options, key=lambda each: (sum(held.milli for _, held in each), [pod for pod, _ in each]))
            return [pod for pod, _ in best]
    return None


def _make_cpu(
    cpu: int, memory: int, request: PodRequest, pods: set[str], movable: list[Holding]
) -> frozenset[str] | None:
    """Add pods until the node has enough CPU and memory for the request; None if it never has."""
    pods = set(pods)
    for holding in movable:
        if holding.pod in pods:
            cpu, memory = cpu + holding.cpu_milli, memory + holding.memory_mib
    for holding in sorted(movable, key=lambda each: (-each.cpu_milli, each.pod)):
        if cpu >= request.cpu_milli and memory >= request.memory_mib:
            break
        if holding.pod not in pods:
            pods.add(holding.pod)
            cpu, memory = cpu + holding.cpu_milli, memory + holding.memory_mib
    return frozenset(pods) if cpu >= request.cpu_milli and memory >= request.memory_mib else None


def _try(
    placer: Placer, request: PodRequest, running: Mapping[str, PodRequest], node: str, pods: tuple[str, ...]
) -> DefragPlan | None:
    """Try the moves on the snapshot, and undo them."""
    snap = placer.snapshot
    others = [name for name in snap.nodes if name != node]
    with _undone(placer) as done:
        moves: list[PodMove] = []
        # Each pod moves to room that is free before any pod moves, and stays on its node only if no other has room.
        for pod in sorted(pods, key=lambda each: (-_total(running[each]), each)):
            again = replace(running[pod], pod=replace(running[pod].pod, uid=f"{pod}, moved"))
            there = placer.place(again, others) or placer.place(again)
            if there is None:
                return None
            done.take(again, there)
            moves.append(PodMove(pod, snap.holdings[pod].node, replace(there, uid=running[pod].pod.uid)))
        for pod in pods:
            done.release(pod)
        grant = placer.place(request, [node])
        return None if grant is None else DefragPlan(tuple(moves), grant)


def _total(request: PodRequest) -> int:
    shares = [container.share for container in request.containers if container.share is not None]
    return sum(share.count * (share.milli or 0) for share in shares)


class _Trial:
    """Undo all changes to the snapshot at the end of the block."""

    def __init__(self, placer: Placer) -> None:
        self._snapshot, self._placer = placer.snapshot, placer
        self._taken: list[str] = []
        self._released: list[Holding] = []

    def release(self, pod: str) -> None:
        self._released.append(self._snapshot.release(pod))

    def take(self, request: PodRequest, grant: Grant) -> None:
        self._snapshot.take(self._placer.holding(request, grant))
        self._taken.append(pod_key(request))

    def undo(self) -> None:
        for holding in reversed(self._released):
            self._snapshot.take(holding, force=True)
        for pod in reversed(self._taken):
            self._snapshot.release(pod)


@contextmanager
def _undone(placer: Placer) -> Generator[_Trial]:
    trial = _Trial(placer)
    try:
        yield trial
    finally:
        trial.undo()
