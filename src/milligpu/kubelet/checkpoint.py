"""The kubelet's checkpoint of device allocations, which says more than the pod-resources API.

The API names pods without their uid and leaves out init containers. The checkpoint has both, and the CDI names that
Allocate answered with. It is an internal file of the kubelet, though its format has not changed for years: a file
that cannot be read counts as missing, and the API is asked instead.
"""

from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.kubelet.held_devices import HeldDevices
from milligpu.model.request import PodRef

FILE = "kubelet_internal_checkpoint"


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    answer: bytes | None = msgspec.field(name="AllocResp", default=None)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _File(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


def read_checkpoint(folder: Path) -> list[HeldDevices] | None:
    """Return all allocations; None if there is no such file or it cannot be read."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=_File)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return [
        HeldDevices(
            PodRef("", "", entry.pod_uid),
            entry.container,
            entry.resource,
            cdi_names=_cdi_names(entry.answer or b""),
        )
        for entry in found.data.entries or []
    ]


def _cdi_names(answer: bytes) -> tuple[str, ...]:
    try:
        return tuple(device.name for device in pb.ContainerAllocateResponse.FromString(answer).cdi_devices)
    except DecodeError:
        return ()
