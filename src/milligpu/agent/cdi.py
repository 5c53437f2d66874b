"""CDI files: a container starts only if the file of its device exists, which is written after the grant's check."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from milligpu.agent.attachment import CDI_KIND

# The first version with everything used here; containerd 1.7 reads it.
CDI_VERSION = "0.6.0"
_READ_ONLY = ("bind", "ro", "nosuid", "nodev")
_WRITABLE = ("bind", "rw", "nosuid", "nodev")


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or directory of the node inside the container."""

    host: str = msgspec.field(name="hostPath")
    inside: str = msgspec.field(name="containerPath")
    options: tuple[str, ...] = ()
    type: str = ""


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of the node inside the container. Without numbers, the runtime reads them from the node."""

    path: str
    hostPath: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    fileMode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program of the node that the runtime runs while it creates a container, which fails if the program does."""

    hookName: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What attaching changes about a container."""

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    groups: tuple[int, ...] = ()
    """Numbers of more groups of the container's processes."""
    version: str = CDI_VERSION
    """The first version of CDI that can say all of this."""

    def plus(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return both; of two entries for one path in the container, the later one stays."""
        nodes = {each.path: each for each in (*self.device_nodes, *other.device_nodes)}
        mounts = {each.inside: each for each in (*self.mounts, *other.mounts)}
        return ContainerEdits(
            {**self.environment, **other.environment},
            tuple(nodes.values()),
            tuple(mounts.values()),
            tuple(dict.fromkeys((*self.hooks, *other.hooks))),
            tuple(dict.fromkeys((*self.groups, *other.groups))),
            max(self.version, other.version, key=_version_key),
        )


def read_only(host: object, inside: object) -> Mount:
    """Mount a path of the node; the container cannot change it."""
    return Mount(str(host), str(inside), _READ_ONLY)


def writable(host: object, inside: object) -> Mount:
    """Mount a path of the node; the container can write to it."""
    return Mount(str(host), str(inside), _WRITABLE)


def cdi_document(name: str, edits: ContainerEdits, kind: str = CDI_KIND) -> str:
    """Return the CDI file of device `name`."""
    content = {
        "cdiVersion": edits.version,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(edits)}],
    }
    return json.dumps(content, indent=1) + "\n"


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": [f"{key}={value}" for key, value in edits.environment.items()],
        "deviceNodes": msgspec.to_builtins(edits.device_nodes),
        "mounts": msgspec.to_builtins(edits.mounts),
        "hooks": msgspec.to_builtins(edits.hooks),
        "additionalGids": list(edits.groups),
    }
    return {key: value for key, value in found.items() if value}


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
