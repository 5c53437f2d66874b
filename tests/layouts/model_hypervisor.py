"""A hypervisor in memory: one card of 16 GB, tasks that take some looks, and faults."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from milligpu.hypervisors.host import MachineHost, MachineRefused
from milligpu.model.errors import Unavailable
from milligpu.model.machines import Machine, MachineState
from tests.layouts.machine_world import QUARTER, WHOLE, WORKERS

CARD_GIGABYTES = 16
_SIZES = {QUARTER: 4, WHOLE: 16}
_FOREVER = 1 << 30


@dataclass
class _Task:
    """A task: after so many looks it ends, and brings the state, or fails."""

    looks: int
    state: MachineState
    failure: str = ""
    idle: bool = False
    """Whether it says success and does nothing."""


class ModelHypervisor:
    """The VMs, the card and the faults to come."""

    def __init__(self) -> None:
        self.machines = {name: Machine(name, MachineState.RUNNING, QUARTER) for name in WORKERS}
        self.machines["w5"] = Machine("w5", MachineState.SUSPENDED, WHOLE)
        self.tasks: dict[str, _Task] = {}
        self.faults: list[tuple[str, int]] = []
        self.away = 0
        self._refused: list[str] = []

    def connect(self) -> MachineHost:
        return _Connection(self)

    def break_something(self, dice: random.Random) -> str:
        kind = dice.choice(("call", "fails", "lies", "hangs", "slow", "away"))
        if kind == "away":
            self.away = dice.randint(1, 80)
        else:
            self.faults += [(kind, dice.randint(1, 40))] * dice.randint(1, 6)
        return kind

    def heal(self) -> None:
        self.faults.clear()
        self.away = 0

    def states(self) -> Mapping[str, str]:
        return {name: str(each.state) for name, each in self.machines.items()}

    def refused(self) -> list[str]:
        return self._refused

    def tick(self) -> None:
        """Let tasks go on; call it once per question."""
        if self.away:
            self.away -= 1
            raise Unavailable("away")
        for name, task in list(self.tasks.items()):
            task.looks -= 1
            if task.looks <= 0:
                del self.tasks[name]
                self._end(name, task)

    def _end(self, name: str, task: _Task) -> None:
        problem = task.failure
        machine = self.machines[name]
        if not problem and not task.idle:
            if task.state is MachineState.RUNNING and not self._has_room(name):
                self._refused.append(name)
                problem = "no card has room"
            else:
                machine = replace(machine, state=task.state)
        self.machines[name] = replace(machine, problem=problem)

    def _has_room(self, name: str) -> bool:
        on = [each for each in self.machines.values() if each.state is MachineState.RUNNING]
        profile = self.machines[name].profile
        used = sum(_SIZES[each.profile] for each in on)
        return all(each.profile == profile for each in on) and used + _SIZES[profile] <= CARD_GIGABYTES


class _Connection:
    def __init__(self, model: ModelHypervisor) -> None:
        self._model = model

    async def look(self, names: Sequence[str]) -> Mapping[str, Machine]:
        self._model.tick()
        found = {name: self._model.machines[name] for name in names}
        return {
            name: replace(each, busy="a task" if name in self._model.tasks else "") for name, each in found.items()
        }

    async def start(self, found: Machine, state: MachineState, profile: str = "") -> None:
        self._model.tick()
        if found.name in self._model.tasks:
            raise MachineRefused("another task runs")
        kind, looks = self._model.faults.pop() if self._model.faults else ("", 1)
        if kind == "call":
            raise MachineRefused("not now")
        self._model.tasks[found.name] = _Task(
            _FOREVER if kind == "hangs" else looks, state, "no space" if kind == "fails" else "", kind == "lies"
        )

    async def cancel(self, name: str) -> None:
        if name in self._model.tasks:
            del self._model.tasks[name]

    async def close(self) -> None:
        return
