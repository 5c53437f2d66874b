"""Where a session service is found on a machine."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE = Path("/run/milligpu/agent")
"""The directory of the service that an admin, or a node's agent, runs for all users."""
# With a longer path the sockets of tenants, which lie deeper, would not fit into a socket address (108 bytes).
_DEPTH_MAX = 70
# A script may start this many commands at once.
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class ServicePaths:
    """The files of one service: its socket, lock and log, and a directory per session."""

    folder: Path

    @classmethod
    def own(cls, env: Mapping[str, str]) -> "ServicePaths":
        """The service that this user's commands start by themselves."""
        runtime = env.get("XDG_RUNTIME_DIR") or f"/tmp/milligpu-{os.getuid()}"
        folder = Path(runtime, "milligpu", "agent")
        if len(str(folder)) > _DEPTH_MAX:
            folder = Path(f"/tmp/milligpu-{os.getuid()}", "milligpu", "agent")
        return cls(folder)

    @property
    def socket(self) -> Path:
        return self.folder / "agent.sock"

    @property
    def lock(self) -> Path:
        """Locked while the service runs."""
        return self.folder / "agent.lock"

    @property
    def starting(self) -> Path:
        """Locked by a command while it starts a service."""
        return self.folder / "starting.lock"

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def node(self) -> Path:
        """Exists on a cluster node: there only the agent may grant shares to commands."""
        return self.folder / "node"

    @property
    def sessions(self) -> Path:
        return self.folder / "sessions"

    @property
    def overheads(self) -> Path:
        """What the driver takes for a process, as measured."""
        return self.folder / "overheads.json"

    @property
    def own_softgpu(self) -> Path:
        """Exists while software GPUs run that the service started."""
        return self.folder / "softgpu-started"


def listen(path: Path, mode: int) -> socket.socket:
    """Open the socket for clients."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(_BACKLOG)
    return listener
