"""Carries out steps; checks some invariants after each step, and the others after all faults have ended."""

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import structlog

from testing.controlplane.invariants import (
    Failure,
    check_bound,
    check_memory,
    check_released,
    check_step,
    service_size,
)
from testing.controlplane.steps import Step, apply_step, draw
from testing.controlplane.world import World

# Steps of one run: enough for several faults to meet, few enough to be shortened quickly.
RUN_STEPS = 60
# For a leader after all faults: a Lease of 15 s, its retries, and what was still to be carried out.
_READY_S = 120.0
# A half-open watch must be noticed within this time, and the list that follows applied.
_HALF_OPEN_S = 110.0
_BOUND_S, _RELEASED_S = 10.0, 30.0
# kube-scheduler's podMaxBackoffSeconds, and the attempt that follows.
_BACKOFF_S = 11.0
# At the first attempt a node's total may seem full of nominations, which are cleared only then.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """The properties of a run's cluster, drawn from its seed."""

    seed: str
    nodes: int
    gpus: int
    hints: bool
    clears: bool
    queue: bool = False
    """Whether there is a queue, in which some pods wait."""

    @classmethod
    def draw(cls, seed: str) -> "Setting":
        dice = Random(f"setting {seed}")
        return cls(
            seed, dice.choice((1, 1, 2)), dice.choice((1, 2, 3, 4)), dice.random() < 0.5, dice.random() < 0.5
        )


def steps_of(seed: str, count: int = RUN_STEPS, kinds: Sequence[str] = ()) -> list[Step]:
    return draw(Random(f"steps {seed}"), count, kinds)


def run(setting: Setting, steps: Sequence[Step]) -> Failure | None:
    """Carry out the steps in a new cluster; return what broke first."""
    random.seed(setting.seed)  # for the random part of backoffs
    # Thousands of lines; the configuration is the process's own, which may be a test run with other tests in it.
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        return _run(setting, steps)
    finally:
        structlog.configure(**before)


def _run(setting: Setting, steps: Sequence[Step]) -> Failure | None:
    world = World(
        setting.seed,
        nodes=setting.nodes,
        gpus=setting.gpus,
        hints=setting.hints,
        clears=setting.clears,
        queue=setting.queue,
    )
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
            return Failure("leader", f"nobody leads {_READY_S:g} s after all faults", taken)
        _advance(world, 0.5)
    _advance(world, _BOUND_S)
    failure: Failure | None = None
    for _ in range(_ATTEMPTS):
        _await_backoff(world)
        failure = check_bound(world, taken)
        if failure is None:
            break
    failure = check_step(world, taken) or failure
    if failure is not None:
        return failure
    for _ in range(_ATTEMPTS):
        # The time of a place counts from its first answer, which a pod may have got only now.
        _advance(world, _RELEASED_S)
        _await_backoff(world)
        failure = check_released(world, taken)
        if failure is None:
            break
    failure = check_step(world, taken) or failure
    if failure is not None:
        return failure
    for name in tuple(world.server.pods):
        world.server.delete_pod(name, force=True)
    _advance(world, _RELEASED_S + _BOUND_S)
    return check_memory(world, size, taken)


def _await_backoff(world: World) -> None:
    until = world.clock.now + _BACKOFF_S
    while world.scheduler.backing_off() and world.clock.now < until:
        _advance(world, 0.5)
    _advance(world, 1.0)  # for the attempts that follow


def _advance(world: World, seconds: float) -> None:
    world.clock.run_until(world.clock.now + seconds)


def seeds_of(seed: int, steps: int) -> Iterable[tuple[str, int]]:
    """The runs of a seed: each has its own cluster and at most `RUN_STEPS` steps."""
    number = 0
    while steps > 0:
        yield f"{seed}.{number}", min(RUN_STEPS, steps)
        number, steps = number + 1, steps - RUN_STEPS
