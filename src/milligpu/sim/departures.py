"""A long run in which pods also leave: how much a policy keeps allocated, and what moving pods adds.

Pods are drawn from the trace with their lifetimes; they come as often as keeps the cluster at the chosen load.
The run starts in the middle: with the pods that would be running at any moment, which are mostly long-lived.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milligpu.model.errors import BadFormat
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.defrag import Rules, plan_room
from milligpu.placement.score import PolicyName
from milligpu.sim.replay import Run, Setup, placer_for
from milligpu.sim.trace import Pod, Trace

# Enough for one move of each card of a node; more disturb more than they are worth.
_MOVES_MAX = 4
# The first part of the run is not counted: the cluster forgets how it was filled.
_WARM_UP = 0.25


@dataclass(frozen=True, slots=True)
class Churn:
    """How pods come and go."""

    load: float = 0.9
    """The part of the GPUs that pods would use if all of them found a place."""
    arrivals: int = 10_000
    defrag: bool = False
    """Move running pods when one finds no place."""


class _Cluster:
    """The placer with the pods that run, and when each leaves."""

    def __init__(self, placer: Placer, defrag: bool) -> None:
        self.placer, self.defrag = placer, defrag
        self.running: dict[str, PodRequest] = {}
        self.leaving: list[tuple[float, str, int]] = []
        self.used = 0
        self.moves = 0

    def offer(self, pod: Pod, name: str, until: float) -> bool:
        request = pod.request(name)
        self.placer.observe(request)
        grant = self.placer.place(request)
        if grant is None and self.defrag and pod.num_gpu:
            plan = plan_room(self.placer, request, self.running, Rules(moves_max=_MOVES_MAX))
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


def churn(
    trace: Trace,
    policy: PolicyName,
    seed: int,
    setup: Setup,
    how: Churn,
    *,
    now: Callable[[], float],
    step: Callable[[], object] = lambda: None,
) -> Run:
    """Run it; allocation is the mean over time, and only pods that came after the warm-up count as failed."""
    pods = [pod for pod in sorted(trace.pods, key=lambda pod: pod.name) if pod.lifetime > 0]
    if not any(pod.gpu_total for pod in pods):
        raise BadFormat("pods", "columns creation_time, deletion_time: no lifetimes: want them for --departures")
    dice = np.random.default_rng([seed, 3])
    life = np.array([pod.lifetime for pod in pods], np.float64)
    size = np.array([pod.gpu_total for pod in pods], np.float64)
    gap = float((life * size).mean()) / (how.load * trace.capacity)
    cluster = _Cluster(placer_for(trace, policy, seed, setup), how.defrag)
    _fill(cluster, pods, life, how.load * trace.capacity, dice)
    run = Run(seed)
    counted_from = int(how.arrivals * _WARM_UP)
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
    pods: list[Pod],
    life: np.ndarray[tuple[int], np.dtype[np.float64]],
    goal: float,
    dice: np.random.Generator,
) -> None:
    """Start with the pods that run at a random moment: long-lived ones are more likely, and are half through."""
    asked = 0.0
    number = 0
    while asked < goal:
        pod = pods[int(dice.choice(len(pods), p=life / life.sum()))]
        cluster.offer(pod, f"{pod.name}-start-{number}", float(dice.random()) * pod.lifetime)
        asked += pod.gpu_total
        number += 1
