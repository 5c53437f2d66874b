"""Where an agent is found on a machine."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE = Path("/run/milligpu/agent")
"""Of an agent that an admin runs for everybody."""
# Beyond this the paths of a tenant's sockets, which lie deeper, would not fit into a socket address (108 bytes).
_DEPTH_MAX = 70
# As many commands as a script may start at once.
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class Places:
    """One agent's files: its socket, lock and log, and a folder per session."""

    folder: Path

    @classmethod
    def own(cls, env: Mapping[str, str]) -> "Places":
        """Of the agent that this user's commands start by themselves."""
        runtime = env.get("XDG_RUNTIME_DIR") or f"/tmp/milligpu-{os.getuid()}"
        folder = Path(runtime, "milligpu", "agent")
        if len(str(folder)) > _DEPTH_MAX:
            folder = Path(f"/tmp/milligpu-{os.getuid()}", "milligpu", "agent")
        return cls(folder)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "agent.sock"

    @property
    def lock(self) -> Path:
        """Locked for as long as the agent lives."""
        return self.folder / "agent.lock"

    @property
    def starting(self) -> Path:
        """Locked by a command while it starts an agent."""
        return self.folder / "starting.lock"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "agent.log"

    @property
    def node(self) -> Path:
        """There when the agent of a cluster node serves here: nobody else may give its GPUs to commands."""
        return self.folder / "node"

    @property
    def sessions(self) -> Path:
        """A folder for each session."""
        return self.folder / "sessions"

    @property
    def contexts(self) -> Path:
        """What contexts take of the cards of this machine."""
        return self.folder / "contexts.json"

    @property
    def own_softgpu(self) -> Path:
        """There while the agent runs software GPUs that it started itself."""
        return self.folder / "softgpu-started"


def listen(path: Path, mode: int) -> socket.socket:
    """A socket for clients."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(_BACKLOG)
    return listener
