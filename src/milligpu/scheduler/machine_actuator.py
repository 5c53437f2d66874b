"""Steps on worker VMs: releasing cards, other profiles, resuming. Finds out itself what is left to do.

What counts is the state that the hypervisor reports, never the result of a task: tasks fail, hang, and end without
effect. Undoing never gives up, because nothing else brings the layout before back.
"""

from collections.abc import Mapping

import structlog

from milligpu.hypervisors.host import MachineHost, MachineRefused
from milligpu.layouts.actuator import StepFailed
from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.layouts.layout import CardLayout
from milligpu.model.machines import Machine, MachineState

MACHINE_STEPS = frozenset({StepKind.RELEASE, StepKind.RESHAPE, StepKind.ACQUIRE, StepKind.CAPACITY})
# A full datastore or a busy host may be a matter of a moment; more attempts would only delay the rollback.
TRIES = 3

log = structlog.get_logger()


class MachineActuator:
    """Brings VMs into the states of a step."""

    def __init__(self, host: MachineHost) -> None:
        self._host = host
        self._tries: dict[tuple[str, str], int] = {}
        """How many tasks were started to bring a VM into a state, since it was last reached."""
        self._cancelled: set[str] = set()
        self.layouts: Mapping[str, CardLayout] = {}

    async def look(self, names: tuple[str, ...]) -> Mapping[str, Machine]:
        """Return VMs as they are now. Raises `Unavailable`."""
        return await self._host.look(names)

    async def do(self, step: SwitchStep) -> str:
        if step.kind is StepKind.CAPACITY:
            return await self._verify(step)
        return await self._bring(step, step.after, undo=False)

    async def undo(self, step: SwitchStep) -> str:
        return "" if step.kind is StepKind.CAPACITY else await self._bring(step, step.before, undo=True)

    async def _bring(self, step: SwitchStep, goal: str, *, undo: bool) -> str:
        try:
            found = await self._host.look(step.targets)
        except MachineRefused as error:
            if undo:
                return error.message
            raise StepFailed(error.message) from None
        waits: list[str] = []
        for name in step.targets:
            machine = found.get(name)
            if machine is None:
                if not undo:
                    raise StepFailed(f"VM {name} does not exist any more")
                waits.append(f"VM {name} does not exist any more")
            elif not machine.busy and _reached(step.kind, machine, goal):
                self._forget(name, goal)
            else:
                waits.append(await self._one(step.kind, machine, goal, undo=undo))
        return "" if not waits else waits[0] + (f" and {len(waits) - 1} more" if len(waits) > 1 else "")

    async def _one(self, kind: StepKind, machine: Machine, goal: str, *, undo: bool) -> str:
        """Bring one VM nearer to its goal; return what it waits for."""
        name = machine.name
        if machine.busy:
            # The way back does not wait for a task that hangs.
            if undo and name not in self._cancelled:
                self._cancelled.add(name)
                await self._host.cancel(name)
            return f"VM {name}: {machine.busy}"
        self._cancelled.discard(name)
        tries = self._tries.get((name, goal), 0)
        if tries >= TRIES and not undo:
            self._forget(name, goal)
            raise StepFailed(f"VM {name}: {machine.problem or f'{tries} tasks ended without effect'}")
        self._tries[name, goal] = tries + 1
        if machine.problem:
            log.warning("Task on VM failed", vm=name, goal=goal, tries=tries, error=machine.problem)
        state, profile = (MachineState.OFF, goal) if kind is StepKind.RESHAPE else (MachineState(goal), "")
        try:
            await self._host.start(machine, state, profile)
        except MachineRefused as error:
            if tries + 1 >= TRIES and not undo:
                self._forget(name, goal)
                raise StepFailed(f"VM {name}: {error.message}") from None
            return f"VM {name}: {error.message}"
        log.info("Started task on VM", vm=name, goal=goal, undo=undo)
        return f"VM {name} is becoming {goal or 'without vGPU'}"

    def _forget(self, name: str, goal: str) -> None:
        self._tries.pop((name, goal), None)
        self._cancelled.discard(name)

    async def _verify(self, step: SwitchStep) -> str:
        layout = self.layouts.get(step.after)
        rules = () if layout is None else tuple(each for each in layout.machines if each.name in step.targets)
        found = await self._host.look(tuple(each.name for each in rules))
        for rule in rules:
            machine = found.get(rule.name)
            if machine is None or not rule.satisfied_by(machine):
                present = "gone" if machine is None else f"{machine.state} with {machine.profile or 'no vGPU'}"
                wanted = f"{rule.state}" + (f" with {rule.profile}" if rule.profile else "")
                raise StepFailed(f"VM {rule.name} is {present} after the switch, wanted {wanted}")
        return ""


def _reached(kind: StepKind, machine: Machine, goal: str) -> bool:
    return machine.profile == goal if kind is StepKind.RESHAPE else machine.state == goal
