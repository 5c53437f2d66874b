"""Replay a trace: pods arrive until they ask for more than the cluster has, and each is offered once.

The procedure is that of the FGD paper: per seed, the pods are shuffled, then more are drawn with replacement
until the requests reach `arrival` times the GPUs. What matters is how much of the cluster is allocated when the
pods that arrived asked for 90, 95, 100 … percent of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from milligpu.model.gpu import Node
from milligpu.placement.decide import Placer
from milligpu.placement.fit import RequestKey
from milligpu.placement.score import StrategyName
from milligpu.placement.snapshot import Snapshot
from milligpu.placement.workload import ExpectedWorkload
from milligpu.sim.trace import GROUPS, Trace, TracePod

MARKS = (90, 95, 100, 110, 120, 130)
"""The percentages of arrived demand that results are given for."""
SPECIFIC = "model-specific"
"""Pods that name a model: counted besides the classes, of which they are part."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """How to replay."""

    arrival: float = 1.3
    shuffle_nodes: bool = False
    online: bool = False
    """Learn the expected workload from the arrivals, instead of knowing it from the trace."""


@dataclass(slots=True)
class SeedRun:
    """What one strategy did with one seed."""

    seed: int
    arrived: list[float] = field(default_factory=list[float])
    """After each pod: percent of the GPUs that were asked for."""
    allocated: list[float] = field(default_factory=list[float])
    """After each pod: percent of the GPUs that are allocated."""
    failed: Counter[str] = field(default_factory=Counter[str])
    offered_by_100: Counter[str] = field(default_factory=Counter[str])
    failed_by_100: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0
    moves: int = 0
    """Number of moves of running pods, if defragmentation is on."""

    def count(self, pod: TracePod, *, placed: bool, early: bool) -> None:
        """Count a pod as placed or failed; `early` is while the demand is within the capacity."""
        groups = (pod.group, SPECIFIC) if pod.models else (pod.group,)
        if early:
            self.offered_by_100.update(groups)
        if not placed:
            self.failed.update(groups)
            if early:
                self.failed_by_100.update(groups)

    def at(self, percent: int) -> float | None:
        """Mean allocation while the arrived demand rounds to this percentage; None if it never got there.

        On a small cluster one pod may jump over it: then what was allocated before that pod counts.
        """
        arrived, allocated = np.array(self.arrived), np.array(self.allocated)
        here = np.round(arrived) == percent
        if here.any():
            return float(allocated[here].mean())
        below = np.flatnonzero(arrived < percent)
        return float(allocated[below[-1]]) if len(below) and arrived.max() >= percent - _NEARLY else None


# A run ends with the last pod that fits into the demand: a percent or two below it on a small cluster.
_NEARLY = 2.0


def arrivals(trace: Trace, seed: int, arrival: float) -> list[TracePod]:
    """Return the pods of one seed in the order in which they arrive."""
    pods = sorted(trace.pods, key=lambda pod: pod.name)
    dice = np.random.default_rng(seed)
    order = [pods[int(at)] for at in dice.permutation(len(pods))]
    asked, goal = sum(pod.gpu_total for pod in pods), arrival * trace.capacity
    while asked > goal:
        asked -= order.pop(int(dice.integers(len(order)))).gpu_total
    while True:
        pod = pods[int(dice.integers(len(pods)))]
        if asked + pod.gpu_total > goal:
            return order
        order.append(pod)
        asked += pod.gpu_total


def workload(pods: Sequence[TracePod]) -> dict[RequestKey, float]:
    """The pods of a trace as an expected workload."""
    counts = Counter(RequestKey.of(pod.request()) for pod in pods)
    return {key: float(count) for key, count in counts.items()}


def placer_for(trace: Trace, strategy: StrategyName, seed: int, setup: ReplaySetup) -> Placer:
    """A placer over the empty cluster."""
    nodes: Sequence[Node] = trace.nodes
    if setup.shuffle_nodes:
        order = np.random.default_rng([seed, 1]).permutation(len(nodes))
        nodes = [trace.nodes[int(at)] for at in order]
    target = ExpectedWorkload() if setup.online else ExpectedWorkload(workload(trace.pods))
    return Placer(Snapshot.of(nodes, salt=seed), strategy, target=target, dice=np.random.default_rng([seed, 2]))


def replay(
    trace: Trace,
    strategy: StrategyName,
    seed: int,
    setup: ReplaySetup,
    *,
    now: Callable[[], float],
    step: Callable[[], object] = lambda: None,
) -> SeedRun:
    """Offer every pod once, in order; `step` is called after each."""
    placer = placer_for(trace, strategy, seed, setup)
    run = SeedRun(seed)
    capacity, asked, used = trace.capacity, 0, 0
    for number, pod in enumerate(arrivals(trace, seed, setup.arrival)):
        request = pod.request(f"{pod.name}-{number}")
        asked += pod.gpu_total
        started = now()
        placer.observe(request)
        grant = placer.place(request)
        if grant is not None:
            placer.commit(request, grant)
            used += pod.gpu_total
        run.seconds += now() - started
        run.count(pod, placed=grant is not None, early=asked <= capacity)
        run.arrived.append(asked / capacity * 100)
        run.allocated.append(used / capacity * 100)
        step()
    return run


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one strategy did over all seeds."""

    strategy: StrategyName
    runs: tuple[SeedRun, ...]
    marks: tuple[int, ...] = MARKS
    moved: bool = False

    def data(self) -> dict[str, object]:
        """The result as plain data, for `-o json`."""
        marks = {mark: [at for run in self.runs if (at := run.at(mark)) is not None] for mark in self.marks}
        seen = {mark: values for mark, values in marks.items() if values}
        decisions = sum(len(run.arrived) for run in self.runs)
        moves = {"moves": round(float(np.mean([run.moves for run in self.runs])), 1)} if self.moved else {}
        return {
            "policy": str(self.strategy),
            "seeds": [run.seed for run in self.runs],
            "alloc": {str(mark): round(float(np.mean(values)), 3) for mark, values in seen.items()},
            "alloc_std": {str(mark): round(float(np.std(values)), 3) for mark, values in seen.items()},
            "failed": {group: round(self._mean(group), 2) for group in (*GROUPS, SPECIFIC)},
            "failed_percent_at_100": {group: round(self.rejected(group), 3) for group in (*GROUPS, SPECIFIC)},
            "us_per_decision": round(sum(run.seconds for run in self.runs) / max(1, decisions) * 1e6, 1),
            **moves,
        }

    def _mean(self, group: str) -> float:
        return float(np.mean([run.failed[group] for run in self.runs]))

    def rejected(self, group: str) -> float:
        """Percent of a class's pods that found no place while the demand was within the capacity."""
        offered = sum(run.offered_by_100[group] for run in self.runs)
        return 100 * sum(run.failed_by_100[group] for run in self.runs) / offered if offered else 0.0
