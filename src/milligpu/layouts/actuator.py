"""Who carries out the steps of a switch: one actuator for each kind of thing that a layout describes."""

from collections.abc import Mapping
from typing import Protocol

from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.model.errors import MilligpuError


class StepFailed(MilligpuError):
    """A step cannot be done, and trying again would not help."""


class LayoutActuator(Protocol):
    """Does and undoes steps. Each call may follow one that was cut off, and finds out itself what is left to do."""

    async def do(self, step: SwitchStep) -> str:
        """Do the step; return what it still waits for, or nothing once it is done. Raises `StepFailed`."""
        ...

    async def undo(self, step: SwitchStep) -> str:
        """Bring back what was before, likewise."""
        ...


class ActuatorOfEachKind:
    """Hands each step to the actuator of its kind."""

    def __init__(self, actuators: Mapping[StepKind, LayoutActuator]) -> None:
        self._actuators = actuators

    async def do(self, step: SwitchStep) -> str:
        return await self._of(step).do(step)

    async def undo(self, step: SwitchStep) -> str:
        return await self._of(step).undo(step)

    def _of(self, step: SwitchStep) -> LayoutActuator:
        found = self._actuators.get(step.kind)
        if found is None:
            raise StepFailed(f"step {step.kind} needs a hypervisor, and this scheduler has none (--vsphere)")
        return found
