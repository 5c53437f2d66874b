"""Carries out steps; checks some invariants after each step, and the others after all faults have ended."""

import logging
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from unittest.mock import patch

import structlog

from milligpu.model.policy import PlacementStrategy
from milligpu.placement.decide import Placer
from milligpu.scheduler import term, waiting_events
from testing.controlplane.invariants import (
    Failure,
    check_bound,
    check_memory,
    check_released,
    check_step,
    service_size,
    watch_offers,
)
from testing.controlplane.promises import Promises
from testing.controlplane.steps import Step, apply_step, draw
from testing.controlplane.world import World

# Steps of one run: enough for several faults to meet, few enough to be shortened quickly.
RUN_STEPS = 60
# For a leader after all faults: a Lease of 15 s, its retries, and what was still to be carried out.
_READY_S = 120.0
# A half-open watch must be noticed within this time, and the list that follows applied.
_HALF_OPEN_S = 110.0
_BOUND_S, _RELEASED_S = 10.0, 30.0
_FORGOTTEN_S = 40.0
# How often invariants are checked that must hold within some time.
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """The properties of a run's cluster, drawn from its seed."""

    seed: str
    nodes: int
    gpus: int
    hints: bool
    clears: bool
    kinds: bool
    """Whether the cluster knows milligpu's own kinds of objects."""
    strategy: PlacementStrategy
    """By which GPUs are chosen; which of them is best does not matter here, and packing takes longer to say."""
    queue: bool = False
    """Whether there is a queue, in which some pods wait."""

    @classmethod
    def draw(cls, seed: str, *, queue: bool = False) -> "Setting":
        dice = Random(f"setting {seed}")
        nodes, gpus = dice.choice((1, 1, 2)), dice.choice((1, 2, 3, 4))
        hints, clears, kinds = dice.random() < 0.5, dice.random() < 0.5, queue or dice.random() < 0.8
        strategy = dice.choice((PlacementStrategy.PACKING, PlacementStrategy.BEST_FIT, PlacementStrategy.BEST_FIT))
        return cls(seed, nodes, gpus, hints, clears, kinds, strategy, queue)


def steps_of(seed: str, count: int = RUN_STEPS, kinds: Sequence[str] = ()) -> list[Step]:
    return draw(Random(f"steps {seed}"), count, kinds)


def run(setting: Setting, steps: Sequence[Step]) -> Failure | None:
    """Carry out the steps in a new cluster; return what broke first."""
    random.seed(setting.seed)  # for the random part of backoffs
    # Thousands of lines; the configuration is the process's own, which may be a test run with other tests in it.
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        # The text of events on waiting pods takes a fifth of the time, and nothing here reads it.
        placer = partial(Placer, strategy=setting.strategy)
        with patch.object(waiting_events, "explain_waiting_in_steps", _waits), patch.object(term, "Placer", placer):
            return _run(setting, steps)
    finally:
        structlog.configure(**before)


def _waits(*_: object) -> Generator[None, None, str]:
    yield
    return "it waits"


def _run(setting: Setting, steps: Sequence[Step]) -> Failure | None:
    world = World(
        setting.seed,
        nodes=setting.nodes,
        gpus=setting.gpus,
        hints=setting.hints,
        clears=setting.clears,
        kinds=setting.kinds,
        queue=setting.queue,
    )
    watch_offers(world)
    failure: Failure | None = None
    taken = 0
    try:
        world.clock.run_until(4.0)
        size = service_size(world)
        for step in steps:
            taken += 1
            _advance(world, step.after)
            apply_step(world, step)
            _advance(world, 0.0001)
            failure = check_step(world, taken)
            if failure is not None:
                return failure
        failure = _calm(world, size, taken)
    finally:
        errors = world.close()
    if errors and (failure is None or failure.invariant == "leader"):
        failure = Failure("errors", errors[0], taken)
    return failure


def _calm(world: World, size: int, taken: int) -> Failure | None:
    """End all faults, wait, and check the invariants that must hold then."""
    now = world.clock.now
    half_open = any(stream.half_open for stream in world.network.streams)
    world.heal()
    _advance(world, max(0.0, world.network.late_until - now, world.scheduler.late_until - now) + 1.0)
    if half_open:
        _advance(world, _HALF_OPEN_S)
    deadline = world.clock.now + _READY_S
    while not world.calm():
        if world.clock.now > deadline:
            return Failure("leader", f"no calm {_READY_S:g} s after all faults: leader {world.leader}", taken)
        _advance(world, _LOOK_S)
    promises = Promises()
    failure = _within(world, _BOUND_S, lambda: check_bound(world, taken), promises, taken)
    if failure is None:
        # Each of the pods that cannot use a place may get one once.
        patience = _RELEASED_S * (1 + len(world.blocked())) + _BOUND_S
        failure = _within(world, patience, lambda: check_released(world, taken), promises, taken)
    if failure is not None:
        return failure
    world.restore()
    return _within(world, _FORGOTTEN_S, lambda: check_memory(world, size, taken), promises, taken)


def _within(
    world: World, seconds: float, check: Callable[[], Failure | None], promises: Promises, taken: int
) -> Failure | None:
    """Wait until an invariant holds; return what is broken at the end of the time, or at any time of it."""
    until = world.clock.now + seconds
    while True:
        _advance(world, _LOOK_S)
        broken = check_step(world, taken) or promises.check(world, taken)
        if broken is not None:
            return broken
        failure = check()
        if failure is None or world.clock.now >= until:
            return failure


def _advance(world: World, seconds: float) -> None:
    world.clock.run_until(world.clock.now + seconds)


def seeds_of(seed: int, steps: int) -> Iterable[tuple[str, int]]:
    """The runs of a seed: each has its own cluster and at most `RUN_STEPS` steps."""
    number = 0
    while steps > 0:
        yield f"{seed}.{number}", min(RUN_STEPS, steps)
        number, steps = number + 1, steps - RUN_STEPS
