"""Who carries out the steps of a switch: one actuator for each kind of thing that a layout describes."""

from typing import Protocol

from milligpu.layouts.journal import SwitchStep
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
