"""Where a pod's share may be: on its own node, or on a GPU server."""

import re
from enum import StrEnum

from milligpu.model.errors import BadRequest


class Attach(StrEnum):
    """The annotation `milligpu.dev/attach`."""

    LOCAL = "local"
    REMOTE = "remote"
    """On a GPU server; the pod itself may run on any node."""


def parse_attach(field: str, value: object) -> Attach:
    """Read an annotation or label."""
    if value not in {str(each) for each in Attach}:
        raise BadRequest(field, value, " or ".join(Attach))
    return Attach(str(value))


_SERVER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def parse_server_name(field: str, value: str) -> str:
    """Read the name of a GpuServer object."""
    if not _SERVER_NAME.fullmatch(value):
        raise BadRequest(field, value, "at most 63 lower-case letters, digits, '-' and '.'")
    return value


_SERVER_NODE = "GpuServer/"


def server_node(server: str) -> str:
    """Return the name under which a GPU server is a node to placement; no real node has a '/' in its name."""
    return _SERVER_NODE + server


def server_of_node(node: str) -> str | None:
    """Return the GPU server of this name; None for a real node."""
    return node.removeprefix(_SERVER_NODE) if node.startswith(_SERVER_NODE) else None
