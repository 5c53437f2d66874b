"""The file without which a container does not start: one CDI device, written when it is known whose it is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from milligpu.node.ledger import CDI_KIND

# The first version with everything used here; containerd 1.7 reads it.
CDI_VERSION = "0.6.0"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the node inside the container."""

    host: str
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Edits:
    """What attaching changes about a container."""

    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


def document(name: str, edits: Edits) -> str:
    """The CDI file that gives the device `name` this meaning."""
    content = {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": _edits(edits)}],
    }
    return json.dumps(content, indent=1) + "\n"


def _edits(edits: Edits) -> dict[str, object]:
    return {
        "env": [f"{key}={value}" for key, value in edits.environment.items()],
        "deviceNodes": [{"path": path} for path in edits.device_nodes],
        "mounts": [
            {
                "hostPath": mount.host,
                "containerPath": mount.inside,
                "options": ["bind", "rw" if mount.writable else "ro", "nosuid", "nodev"],
            }
            for mount in edits.mounts
        ],
    }
