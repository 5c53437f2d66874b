"""The hypervisor that the scheduler service was given."""

from functools import partial
from pathlib import Path

from milligpu.hypervisors.host import MachineHost
from milligpu.model.errors import BadRequest


def connect(vsphere: Path | None) -> MachineHost | None:
    """Return the hypervisor of worker VMs, if there is one; `vsphere` is the directory with vCenter's login."""
    if vsphere is None:
        return None
    try:
        from milligpu.hypervisors.vsphere import VsphereHost, read_login  # noqa: PLC0415 - an optional extra
    except ImportError:
        hint = "install it with: pip install 'milligpu[vsphere]'"
        raise BadRequest("--vsphere", str(vsphere), "used with pyVmomi installed", hint=hint) from None
    read_login(vsphere)
    return VsphereHost(partial(read_login, vsphere))
