"""Switches of VMs with faults and kills, for any hypervisor: what holds afterwards is judged by its cards."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from milligpu.hypervisors.host import MachineHost
from milligpu.layouts.actuator import ActuatorOfEachKind, LayoutActuator
from milligpu.layouts.carry_out import Progress, carry_out
from milligpu.layouts.decide import CalendarState, decide, machines_needed
from milligpu.layouts.journal import StepKind, SwitchPhase, SwitchStep
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.spec import CalendarSpec, parse_calendar, parse_layout
from milligpu.layouts.status import CalendarStatus, state_of, status_of
from milligpu.model.errors import Unavailable
from milligpu.scheduler.machine_actuator import MACHINE_STEPS, MachineActuator
from milligpu.scheduler.node_actuator import NODE_STEPS

QUARTER, WHOLE = "grid_v100-4q", "grid_v100-16q"
WORKERS = ("w1", "w2", "w3", "w4")
DAY_MACHINES = {**dict.fromkeys(WORKERS, "running"), "w5": "suspended"}
NIGHT_MACHINES = {**dict.fromkeys(WORKERS, "suspended"), "w5": "running"}
START = datetime(2026, 11, 18, 7, tzinfo=UTC)
# Real time for one switch; a pass takes milliseconds.
DEADLINE_S = 120.0
# Passes after which nothing goes wrong any more, so that each switch ends.
FAULTY_PASSES = 150


def machine_layout(name: str, states: Mapping[str, str], **more: Any) -> CardLayout:
    machines = [{"name": each, "state": state, **more} for each, state in states.items()]
    return parse_layout({"metadata": {"name": name}, "spec": {"machines": machines}})


LAYOUTS = {"day": machine_layout("day", DAY_MACHINES), "night": machine_layout("night", NIGHT_MACHINES)}


def wanted_now(layout: str, **more: Any) -> CalendarSpec:
    """Return a calendar by which this layout holds now."""
    spec = {"default": "day", "override": {"layout": layout}, "deadlineSeconds": 60, **more}
    return parse_calendar({"metadata": {"name": "campus"}, "spec": spec}, START)


class FaultyHypervisor(Protocol):
    """A hypervisor of a test, with its judge."""

    def connect(self) -> MachineHost:
        """Return a new connection, as a new leader has it."""
        ...

    def break_something(self, dice: random.Random) -> str:
        """Let something go wrong with the next tasks; say what."""
        ...

    def heal(self) -> None: ...

    def states(self) -> Mapping[str, str]: ...

    def refused(self) -> list[str]:
        """Return the attempts to give a card twice."""
        ...


class MarkedNodes:
    """Nodes that only remember how they are marked: the nodes themselves are the business of other tests."""

    def __init__(self) -> None:
        self.marks: dict[str, StepKind] = {}

    async def do(self, step: SwitchStep) -> str:
        for name in step.targets:
            self.marks[name] = step.kind
        return ""

    async def undo(self, step: SwitchStep) -> str:
        undone = {StepKind.CORDON: StepKind.UNCORDON, StepKind.UNCORDON: StepKind.MARK}
        for name in step.targets:
            self.marks[name] = undone.get(step.kind, self.marks[name])
        return ""


class MortalActuator:
    """An actuator whose process may die when a step was done and nobody has written it down yet."""

    def __init__(self, actuator: LayoutActuator, die: Callable[[], None]) -> None:
        self._actuator = actuator
        self._die = die

    async def do(self, step: SwitchStep) -> str:
        left = await self._actuator.do(step)
        self._die()
        return left

    async def undo(self, step: SwitchStep) -> str:
        left = await self._actuator.undo(step)
        self._die()
        return left


class MachineWorld:
    """A calendar of VMs, and a controller that may die between any two writes."""

    def __init__(self, hypervisor: FaultyHypervisor, dice: random.Random, *, kills: float) -> None:
        self.hypervisor = hypervisor
        self.nodes = MarkedNodes()
        self.passes = 0
        self._status = b"{}"
        self._dice, self._kills = dice, kills
        self._now = START
        self.generation = 1

    @property
    def state(self) -> CalendarState:
        return state_of(msgspec.json.decode(self._status, type=CalendarStatus))

    async def switch(self, spec: CalendarSpec, each_pass: Callable[[], None] = lambda: None) -> CalendarState:
        """Let one controller after another run until the switch has ended."""
        self.generation += 1
        self.passes, ends = 0, time.monotonic() + DEADLINE_S
        while True:
            host = self.hypervisor.connect()
            machines = MachineActuator(host)
            machines.layouts = LAYOUTS
            actuators: dict[StepKind, LayoutActuator] = dict.fromkeys(NODE_STEPS, self.nodes)
            actuator = MortalActuator(
                ActuatorOfEachKind(actuators | dict.fromkeys(MACHINE_STEPS, machines)), self.die
            )
            try:
                while not await self._pass(spec, machines, actuator):
                    assert time.monotonic() < ends, f"the switch does not end: {self.state.switch}"
                    self.passes += 1
                    if self.passes == FAULTY_PASSES:
                        self.hypervisor.heal()
                    each_pass()
                    await asyncio.sleep(0)
            except InterruptedError:
                continue  # the next leader goes on
            finally:
                await host.close()
            return self.state

    async def _pass(self, spec: CalendarSpec, machines: MachineActuator, actuator: LayoutActuator) -> bool:
        """Do what is due; return whether nothing is left to do."""
        self._now += timedelta(seconds=1)
        needed = machines_needed(spec, self.generation, self.state, LAYOUTS, self._now)
        try:
            found = await machines.look(needed) if needed else None
        except Unavailable:
            return False
        decision = decide(
            spec, self.generation, self.state, layouts=LAYOUTS, nodes=(), now=self._now, machines=found
        )
        _, progress = await carry_out(spec, decision, actuator, self._write, lambda: self._now)
        return progress is Progress.DONE

    async def _write(self, state: CalendarState) -> bool:
        self.die()
        self._status = msgspec.json.encode(status_of(state, ()))
        self.die()
        return True

    def die(self) -> None:
        if self._dice.random() < self._kills:
            raise InterruptedError


async def run_switches(hypervisor: FaultyHypervisor, dice: random.Random, count: int) -> dict[SwitchPhase, int]:
    """Switch to and fro with faults and kills; assert what holds after each, and count how they ended."""
    world, ended = MachineWorld(hypervisor, dice, kills=0.02), dict[SwitchPhase, int]()
    await world.switch(wanted_now("day"))
    for _ in range(count):
        before = world.state.layout
        target = "night" if before == "day" else "day"
        broken = [hypervisor.break_something(dice) for _ in range(dice.randint(0, 2))]
        state = await world.switch(wanted_now(target))
        hypervisor.heal()
        assert state.switch is not None
        phase = state.switch.phase
        ended[phase] = ended.get(phase, 0) + 1
        story = f"{before} to {target} with {broken}: {phase} {state.switch.message}"
        assert state.layout == (target if phase is SwitchPhase.DONE else before), story
        wanted = NIGHT_MACHINES if state.layout == "night" else DAY_MACHINES
        assert hypervisor.states() == wanted, story
        assert hypervisor.refused() == [], story
        on = {name for name, found in wanted.items() if found == "running"}
        assert {name for name, mark in world.nodes.marks.items() if mark is not StepKind.MARK} == on, story
    return ended
