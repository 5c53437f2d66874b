"""`GpuServer` objects in the leader: each is a node for remote shares, while its server writes its status."""

import asyncio
from collections.abc import Callable

import structlog

from milligpu.cluster.servers import read_server, server_text
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Watch, follow_all
from milligpu.model import names
from milligpu.model.attach import server_node, server_of_node
from milligpu.wire.kubernetes import KubeGpuServer

# A server writes its status every 10 s. Without four of these it gets no new shares; those that it has stay.
SILENCE_S = 40.0
_LOOK_S = 5.0
_ABSENT_S = 10.0

log = structlog.get_logger()


class ServerController:
    """Keeps the cluster's GPU servers in the cluster state."""

    def __init__(
        self, api: ApiClient, state: ClusterState, on_change: Callable[[], None], now: Callable[[], float]
    ) -> None:
        self._api = api
        self._state = state
        self._on_change = on_change
        self._now = now
        self._servers: dict[str, KubeGpuServer] = {}
        self._heard: dict[str, tuple[str, float]] = {}
        """The last heartbeat of each server, and when it was seen by this instance's clock."""
        self._silent: set[str] = set()

    def text(self, node: str) -> str:
        """Return what a pod needs to reach the GPU server that is this node; empty for a real node."""
        server = self._servers.get(server_of_node(node) or "")
        return "" if server is None else server_text(server)

    async def run(self) -> None:
        """Follow the servers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._watch_silence())

    async def _follow(self) -> None:
        watch = Watch(self._api, names.SERVERS_PATH, KubeGpuServer, retry_s=_ABSENT_S, optional=True)
        async for objects in follow_all(watch):
            found = {each.metadata.name: each for each in objects}
            for gone in self._servers.keys() - found.keys():
                self._heard.pop(gone, None)
                self._state.drop_node(server_node(gone))
            self._servers = found
            for name, server in found.items():
                if self._heard.get(name, ("", 0.0))[0] != server.status.heartbeat:
                    self._heard[name] = server.status.heartbeat, self._now()
            self._put_all()

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            silent = {name for name, (_, at) in self._heard.items() if self._now() - at > SILENCE_S}
            if silent != self._silent:
                self._silent = silent
                self._put_all()

    def _put_all(self) -> None:
        for name, server in self._servers.items():
            late = f"the GPU server was last heard of at {server.status.heartbeat or 'no time'}"
            observed = read_server(server, late if name in self._silent else "")
            if observed.problem:
                log.warning("Could not read GPUs of server", server=name, error=observed.problem)
            self._state.put_node(observed)
        self._on_change()
