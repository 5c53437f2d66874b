"""`milligpu run` on a cluster node: the same sessions as on any machine, within the part reserved for them.

The agent serves them with its one arbiter. Pods and sessions together never over-commit a GPU: each side counts the
other's part as taken, and what the other holds beyond its part, too.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.model.errors import Unavailable
from milligpu.model.footprint import GpuDemand
from milligpu.model.grant import GpuShare
from milligpu.sessions.paths import ServicePaths, listen
from milligpu.sessions.protocol import LINE_MAX
from milligpu.wire.status import MachineStatus

if TYPE_CHECKING:
    from milligpu.sessions.service import SessionService


class NodeSessions:
    """Serves commands on this node; the session service starts with the first command."""

    def __init__(self, paths: ServicePaths, make_service: "Callable[[], SessionService]") -> None:
        """`make_service` is called with the first command, because the service needs numpy."""
        self._paths = paths
        self._make_service = make_service
        self._lock = -1
        self._service: SessionService | None = None
        self._started = asyncio.Event()

    def demands(self) -> dict[str, GpuDemand]:
        """Return what sessions hold of each GPU."""
        return {} if self._service is None else self._service.manager.demands()

    def shares(self) -> dict[str, tuple[GpuShare, ...]]:
        """Return what each session holds, by its ID."""
        if self._service is None:
            return {}
        return {session.id: session.shares for session in self._service.manager.sessions.values()}

    def status(self) -> MachineStatus | None:
        """Describe the sessions; None before the first command."""
        return None if self._service is None else self._service.status()

    def is_session(self, pid: int) -> bool:
        """Whether a process belongs to a session, which audits it.

        A pod's process does not, whatever its environment says.
        """
        return (
            self._service is not None and pod_uid_of_process(pid) is None and self._service.is_session_process(pid)
        )

    def rediscover(self) -> None:
        """Note that the GPUs, or what pods hold of them, changed."""
        if self._service is not None:
            self._service.manager.rediscover()

    def recover(self) -> None:
        """Take over the sessions of the agent before this one, and lock out every other session service."""
        self._paths.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._paths.node.touch()
        self._lock = os.open(self._paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another session service runs on this machine: {self._paths.folder}",
                hint="stop `milligpu agent --local`: on a node the agent serves commands",
            ) from None
        if self._paths.sessions.exists() and any(self._paths.sessions.iterdir()):
            self._start()

    def _start(self) -> "SessionService":
        if self._service is None:
            self._service = self._make_service()
            self._service.start()
            self._started.set()
        return self._service

    async def serve(self) -> None:
        """Serve until cancelled; after that a successor may recover."""
        try:
            listener = listen(self._paths.socket, 0o666)
            server = await asyncio.start_unix_server(self._client, sock=listener, limit=LINE_MAX)
            try:
                await self._started.wait()
                await self._start().monitor()
            finally:
                server.close()
        finally:
            os.close(self._lock)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._start().serve(reader, writer)
