"""The kubelet's own record of what it handed out: exact where the pod-resources API is not.

That API names pods without their uid and leaves out init containers; this file has both, and the very CDI names
that Allocate answered with. It is the kubelet's internal business, though its form has not changed for years:
whatever does not read in it counts as not there, and the API is asked instead.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from milligpu.kubelet._generated import deviceplugin_pb2 as pb

FILE = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One container's holding of one resource."""

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]
    """The CDI names it was answered with."""


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    answer: bytes | None = msgspec.field(name="AllocResp", default=None)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _File(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


def read_checkpoint(folder: Path) -> list[Recorded] | None:
    """Everything the kubelet remembers; None when there is no such file or it does not read."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=_File)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return [
        Recorded(entry.pod_uid, entry.container, entry.resource, _devices(entry.answer or b""))
        for entry in found.data.entries or []
    ]


def _devices(answer: bytes) -> tuple[str, ...]:
    try:
        return tuple(device.name for device in pb.ContainerAllocateResponse.FromString(answer).cdi_devices)
    except DecodeError:
        return ()
