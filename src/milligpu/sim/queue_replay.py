"""A long run with users and queues: who waits how long, by which rule.

Traces have no users. A run draws them: each belongs to one queue, a few have most of the pods (Zipf), and everybody
states a time limit that is longer than the pod will run. All rules get the same pods at the same times.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from milligpu.model.gpu_queue import GpuQueues
from milligpu.model.policy import PlacementStrategy
from milligpu.model.units import WHOLE, Mib, Milli
from milligpu.placement.score import StrategyName
from milligpu.queues.order import QueuedPod
from milligpu.sim.departures import WARM_UP, with_lifetimes
from milligpu.sim.queue_rules import QueueRule, make_rule
from milligpu.sim.replay import ReplaySetup, placer_for
from milligpu.sim.trace import GPU_MIB, Trace, TracePod

USERS = 50
ZIPF = 1.1
# A time limit is from once to this many times what the pod takes.
LIMIT_MAX = 3.0
# Pods that are there from the beginning come this many seconds apart, so that each has its turn.
_APART = 1e-6


@dataclass(frozen=True, slots=True)
class QueueArrival:
    """A pod of the run."""

    pod: QueuedPod
    lifetime: float
    gpus: int


@dataclass(frozen=True, slots=True)
class QueueSetup:
    """How pods arrive."""

    load: float = 0.9
    """The part of the GPUs that pods would use if none had to wait."""
    arrivals: int = 10_000
    strategy: StrategyName = PlacementStrategy.PACKING


@dataclass(slots=True)
class QueueRun:
    """What one rule did."""

    rule: str
    seed: int
    waits: list[float] = field(default_factory=list[float])
    small: list[float] = field(default_factory=list[float])
    """Waits of pods that ask for less than one GPU."""
    large: list[float] = field(default_factory=list[float])
    """Waits of pods that ask for several GPUs."""
    by_user: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """For each user, of every pod the part of its time that it ran instead of waiting."""
    allocated: float = 0.0
    early: int = 0
    promised: int = 0
    late: int = 0
    """Pods that started after the time that was promised to them first."""

    @property
    def fairness(self) -> float:
        """Jain's index over the users: 1 where all wait equally long for what they get."""
        parts = np.array([np.mean(each) for each in self.by_user.values() if each])
        return float(parts.sum() ** 2 / (len(parts) * (parts**2).sum())) if len(parts) else 1.0

    def data(self) -> dict[str, str | float]:
        """The result as plain data."""
        return {
            "rule": self.rule,
            "seed": self.seed,
            "pods": len(self.waits),
            "wait_mean_s": _rounded(np.mean(self.waits) if self.waits else 0.0),
            "wait_p95_s": _p95(self.waits),
            "small_p95_s": _p95(self.small),
            "large_p95_s": _p95(self.large),
            "fairness": round(self.fairness, 4),
            "allocated_percent": round(self.allocated, 2),
            "early": self.early,
            "promised": self.promised,
            "late": self.late,
        }


def _p95(values: Sequence[float]) -> float:
    return _rounded(np.percentile(values, 95)) if values else 0.0


def _rounded(value: float | np.floating) -> float:
    return round(float(value), 1)


def draw_arrivals(trace: Trace, queues: GpuQueues, seed: int, setup: QueueSetup) -> list[QueueArrival]:
    """The pods of a seed, with their users and queues, in the order in which they come.

    The first of them come at once, in the middle of their lives: those that run at any moment at this load.
    """
    pods = [pod for pod in with_lifetimes(trace) if pod.num_gpu]
    life = np.array([pod.lifetime for pod in pods], np.float64)
    size = np.array([pod.gpu_total for pod in pods], np.float64)
    draw = _Draw(queues, np.random.default_rng([seed, 4]))
    found: list[QueueArrival] = []
    asked, goal = 0.0, min(setup.load, 1.0) * trace.capacity
    while asked < goal:
        pod = pods[int(draw.dice.choice(len(pods), p=life / life.sum()))]
        found.append(draw.arrival(pod, len(found) * _APART, pod.lifetime * float(draw.dice.random())))
        asked += pod.gpu_total
    at, gap = len(found) * _APART, float((life * size).mean()) / (setup.load * trace.capacity)
    for _ in range(setup.arrivals):
        at += float(draw.dice.exponential(gap))
        pod = pods[int(draw.dice.integers(len(pods)))]
        found.append(draw.arrival(pod, at, float(pod.lifetime)))
    return found


class _Draw:
    """Users, who belong to queues, and their time limits."""

    def __init__(self, queues: GpuQueues, dice: np.random.Generator) -> None:
        self.dice = dice
        leaves = [queue.name for queue in queues.leaves]
        self._homes = [leaves[int(dice.integers(len(leaves)))] for _ in range(USERS)]
        weights = 1 / np.arange(1, USERS + 1) ** ZIPF
        self._weights = weights / weights.sum()
        self._number = 0

    def arrival(self, pod: TracePod, at: float, lifetime: float) -> QueueArrival:
        user = int(self.dice.choice(USERS, p=self._weights))
        limit = lifetime * float(self.dice.uniform(1.0, LIMIT_MAX))
        self._number += 1
        request = pod.request(f"{pod.name}-{self._number}")
        milli, mib = Milli(pod.gpu_total), Mib(pod.gpu_total * GPU_MIB // WHOLE)
        queued = QueuedPod(request, self._homes[user], f"user-{user:02d}", at, milli, mib, limit)
        return QueueArrival(queued, lifetime, pod.num_gpu)


class _Clock:
    """The events of a run in the order of their times."""

    def __init__(self, rule: QueueRule, arrivals: Sequence[QueueArrival], capacity: int, run: QueueRun) -> None:
        self.rule, self.run = rule, run
        self.arrivals = {each.pod.name: each for each in arrivals}
        self.leaving: list[tuple[float, str]] = []
        self.waiting: dict[str, QueueArrival] = {}
        self.promised: dict[str, float] = {}
        self.used, self.area, self.now = 0, 0.0, 0.0
        self.capacity = capacity
        self.counted_from = arrivals[int(len(arrivals) * WARM_UP)].pod.arrived

    def until(self, then: float) -> None:
        """Let all pods end that end until then."""
        while self.leaving and self.leaving[0][0] <= then:
            at, name = heapq.heappop(self.leaving)
            self._pass(at)
            self.rule.end(self.arrivals[name].pod, at)
            self.used -= self.arrivals[name].pod.milli
            if not self.leaving or self.leaving[0][0] > at:
                self.start()
        self._pass(then)

    def arrive(self, arrival: QueueArrival) -> None:
        self.until(arrival.pod.arrived)
        self.rule.add(arrival.pod)
        self.waiting[arrival.pod.name] = arrival
        self.start()

    def start(self) -> None:
        for started in self.rule.start(self.now):
            arrival = self.waiting.pop(started.pod.name)
            self.used += arrival.pod.milli
            heapq.heappush(self.leaving, (self.now + arrival.lifetime, arrival.pod.name))
            self.run.early += started.early
            self._count(arrival)
        for name, opening in self.rule.openings.items():
            self.promised.setdefault(name, opening.at)

    def _pass(self, then: float) -> None:
        counted = max(0.0, then - max(self.now, self.counted_from))
        self.area += self.used * counted
        self.now = max(self.now, then)

    def _count(self, arrival: QueueArrival) -> None:
        promised = self.promised.pop(arrival.pod.name, None)
        if promised is not None:
            self.run.promised += 1
            self.run.late += self.now > promised
        if arrival.pod.arrived < self.counted_from:
            return
        wait = self.now - arrival.pod.arrived
        self.run.waits.append(wait)
        if arrival.gpus > 1:
            self.run.large.append(wait)
        elif arrival.pod.milli < WHOLE:
            self.run.small.append(wait)
        self.run.by_user.setdefault(arrival.pod.user, []).append(arrival.lifetime / (arrival.lifetime + wait))

    def close(self) -> None:
        """Pods that still wait count with the time they have waited: a rule must not win by forgetting them."""
        spent = self.now - self.counted_from
        self.run.allocated = 100 * self.area / (spent * self.capacity) if spent > 0 else 0.0
        self.promised.clear()
        for arrival in list(self.waiting.values()):
            self._count(arrival)


def replay_queues(
    trace: Trace,
    queues: GpuQueues,
    rule: str,
    seed: int,
    setup: QueueSetup,
    *,
    step: Callable[[], object] = lambda: None,
) -> QueueRun:
    """Run one rule over the pods of a seed."""
    run = QueueRun(rule, seed)
    placer = placer_for(trace, setup.strategy, seed, ReplaySetup())
    arrivals = draw_arrivals(trace, queues, seed, setup)
    clock = _Clock(make_rule(rule, placer, queues, trace.capacity), arrivals, trace.capacity, run)
    for arrival in arrivals:
        clock.arrive(arrival)
        step()
    clock.close()
    return run
