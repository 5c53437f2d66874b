"""Worker VMs: what a layout asks of them, and what a hypervisor reports."""

import re
from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.errors import BadRequest

_PROFILE = re.compile(r"(?:grid|nvidia)_[a-z]+[a-z0-9]*(?:-\d{1,2})?-\d{1,3}[qabc]")
PROFILE_PATTERN = f"^{_PROFILE.pattern}$"


class MachineState(StrEnum):
    """The power state of a VM."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    """Its memory, and that of its vGPU, is on disk; the card is free for others."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM as its hypervisor reports it now."""

    name: str
    state: MachineState
    profile: str = ""
    """Its vGPU profile, as the hypervisor spells it; empty if it has none."""
    busy: str = ""
    """The task that runs on it, if any."""
    problem: str = ""
    """How the last task that we started on it failed; empty if it did not."""
    suspends: bool = True
    """Whether it can be suspended with its vGPU."""


def parse_machine_profile(field: str, value: object) -> str:
    """Read a vGPU profile as hypervisors spell it."""
    if not isinstance(value, str) or not _PROFILE.fullmatch(value):
        raise BadRequest(field, value, "a vGPU profile as the hypervisor spells it, such as grid_v100-4q")
    return value
