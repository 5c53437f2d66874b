"""What a switch needs of a hypervisor."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from milligpu.model.errors import MilligpuError
from milligpu.model.machines import Machine, MachineState


class MachineRefused(MilligpuError):
    """The hypervisor refuses to begin: nothing was changed. Another attempt may succeed."""


class MachineHost(Protocol):
    """VMs by name. Calls return soon: tasks go on in the hypervisor, and `look` tells how far they are."""

    async def look(self, names: Sequence[str]) -> Mapping[str, Machine]:
        """Return the VMs as they are now; those that do not exist are missing.

        Raises `Unavailable` if the hypervisor does not answer in time.
        """
        ...

    async def start(self, found: Machine, state: MachineState, profile: str = "") -> None:
        """Begin to bring a VM into a state, or one that is off to another profile, and return.

        Raises `MachineRefused`, or `Unavailable` if it is not known whether the task has begun.
        """
        ...

    async def cancel(self, name: str) -> None:
        """Ask the task on a VM to end, if the hypervisor can."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...
