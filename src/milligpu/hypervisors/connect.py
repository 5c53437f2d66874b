"""The hypervisor that the scheduler service was given."""

from functools import partial
from pathlib import Path

from milligpu.hypervisors.host import MachineHost


def connect(vsphere: Path | None) -> MachineHost | None:
    """Return the hypervisor of worker VMs, if there is one; `vsphere` is the directory with vCenter's login."""
    if vsphere is None:
        return None
    from milligpu.hypervisors.vsphere import VsphereHost, read_login  # noqa: PLC0415 - an optional extra

    read_login(vsphere)
    return VsphereHost(partial(read_login, vsphere))
