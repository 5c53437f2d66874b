"""A long run in which pods also end: how much a strategy keeps allocated, and what moving pods adds.

Pods are drawn from the trace with their lifetimes; their arrival rate keeps the cluster at the chosen load.
The run starts in the middle: with the pods that would be running at any moment, which are mostly long-lived.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milligpu.model.errors import BadFormat
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.defrag import MoveRules, plan_room
from milligpu.placement.score import StrategyName
from milligpu.sim.replay import ReplaySetup, SeedRun, placer_for
from milligpu.sim.trace import Trace, TracePod

# Enough for one move of each GPU of a node; more disturb more than they are worth.
_MOVES_MAX = 4
# The first part of the run is not counted: the cluster forgets how it was filled.
WARM_UP = 0.25


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """Settings of a run: how pods arrive and end."""

    load: float = 0.9
    """The part of the GPUs that pods would use if all of them found a place."""
    arrivals: int = 10_000
    defrag: bool = False
    """Move running pods when one finds no place."""


class _Cluster:
    """The placer with the pods that run, and when each ends."""

    def __init__(self, placer: Placer, defrag: bool) -> None:
        self.placer, self.defrag = placer, defrag
        self.running: dict[str, PodRequest] = {}
        self.leaving: list[tuple[float, str, int]] = []
        self.used = 0
        self.moves = 0

    def offer(self, pod: TracePod, name: str, until: float) -> bool:
        request = pod.request(name)
        self.placer.observe(request)
        grant = self.placer.place(request)
        if grant is None and self.defrag and pod.num_gpu:
            plan = plan_room(self.placer, request, self.running, MoveRules(moves_max=_MOVES_MAX))
            if plan is not None:
                for move in plan.moves:
                    self.placer.release(move.pod)
                    self.placer.commit(self.running[move.pod], move.grant)
                self.moves += len(plan.moves)
                grant = plan.grant
        if grant is None:
            return False
        self.placer.commit(request, grant)
        self.running[name] = request
        self.used += pod.gpu_total
        heapq.heappush(self.leaving, (until, name, pod.gpu_total))
        return True

    def leave(self) -> float:
        at, name, total = heapq.heappop(self.leaving)
        self.placer.release(name)
        del self.running[name]
        self.used -= total
        return at


def with_lifetimes(trace: Trace) -> list[TracePod]:
    """The pods whose lifetime is known; refuse a trace that has none with a GPU."""
    pods = [pod for pod in sorted(trace.pods, key=lambda pod: pod.name) if pod.lifetime > 0]
    if not any(pod.gpu_total for pod in pods):
        raise BadFormat("pods", "columns creation_time, deletion_time: no lifetimes: required for pods that end")
    return pods


def churn(
    trace: Trace,
    strategy: StrategyName,
    seed: int,
    setup: ReplaySetup,
    how: ChurnResult,
    *,
    now: Callable[[], float],
    step: Callable[[], object] = lambda: None,
) -> SeedRun:
    """Run the simulation; allocation is the mean over time, and failed pods count only after the warm-up."""
    pods = with_lifetimes(trace)
    dice = np.random.default_rng([seed, 3])
    life = np.array([pod.lifetime for pod in pods], np.float64)
    size = np.array([pod.gpu_total for pod in pods], np.float64)
    gap = float((life * size).mean()) / (how.load * trace.capacity)
    cluster = _Cluster(placer_for(trace, strategy, seed, setup), how.defrag)
    _fill(cluster, pods, life, how.load * trace.capacity, dice)
    run = SeedRun(seed)
    counted_from = int(how.arrivals * WARM_UP)
    clock = area = began = 0.0
    for number in range(how.arrivals):
        upcoming = clock + float(dice.exponential(gap))
        while cluster.leaving and cluster.leaving[0][0] <= upcoming:
            used, then = cluster.used, clock
            clock = cluster.leave()
            area += used * (clock - then)
        area += cluster.used * (upcoming - clock)
        clock = upcoming
        if number == counted_from:
            area, began = 0.0, clock
        pod = pods[int(dice.integers(len(pods)))]
        started = now()
        placed = cluster.offer(pod, f"{pod.name}-{number}", clock + pod.lifetime)
        run.seconds += now() - started
        if number >= counted_from:
            run.count(pod, placed=placed, early=True)
        run.arrived.append(how.load * 100)
        run.allocated.append(area / (clock - began) / trace.capacity * 100 if clock > began else 0.0)
        step()
    run.moves = cluster.moves
    # Only the mean of the whole counted time is a result.
    run.allocated = [run.allocated[-1]] * len(run.allocated)
    return run


def _fill(
    cluster: _Cluster,
    pods: list[TracePod],
    life: np.ndarray[tuple[int], np.dtype[np.float64]],
    goal: float,
    dice: np.random.Generator,
) -> None:
    """Add the pods that run at a random moment: long-lived ones are more likely, and on average half over."""
    asked = 0.0
    number = 0
    while asked < goal:
        pod = pods[int(dice.choice(len(pods), p=life / life.sum()))]
        cluster.offer(pod, f"{pod.name}-start-{number}", float(dice.random()) * pod.lifetime)
        asked += pod.gpu_total
        number += 1
