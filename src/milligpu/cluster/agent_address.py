"""Where a node's agent listens."""

from milligpu.model import names
from milligpu.wire.kubernetes import KubeNode


def agent_address(node: KubeNode) -> str | None:
    """Return host and port of a node's agent; one that listens on all addresses is reached at the node's own."""
    listen = (node.metadata.annotations or {}).get(names.AGENT, "")
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        return None
    if host not in {"", "0.0.0.0", "[::]"}:
        return f"{host}:{port}"
    inside = [each.address for each in node.status.addresses or () if each.type == "InternalIP"]
    return f"{inside[0]}:{port}" if inside else None
