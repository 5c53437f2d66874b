"""`milligpu run` on a cluster node: the same sessions as on any machine, within what is set aside for them.

The node's agent serves them with its one arbiter. What pods and commands may have of a card never exceeds it:
each side counts the other's part as reserved, and what the other holds beyond that, too.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from milligpu.agent.arbiter import Arbiter
from milligpu.agent.places import Places, listen
from milligpu.agent.protocol import LINE_MAX
from milligpu.devices.cards import Cards
from milligpu.model.errors import Unavailable
from milligpu.model.footprint import Demand
from milligpu.model.gpu import Gpu
from milligpu.model.units import Milli
from milligpu.node.driver import Driver
from milligpu.node.processes import pod_of_process

if TYPE_CHECKING:
    from milligpu.agent.service import Service


@dataclass(frozen=True, slots=True)
class Node:
    """What commands need to know of the node."""

    cards: Cards
    driver: Driver
    gpus: Callable[[], Iterable[Gpu]]
    """As the inventory shows them."""
    pods: Callable[[], Mapping[str, Demand]]
    """What pods hold of each card."""


def part_of(gpu: Gpu, demand: Demand | None) -> Milli:
    """A demand as a part of the card: of its time or of its memory, whichever is more."""
    if demand is None:
        return Milli(0)
    memory = -(-demand.mib * gpu.milli // gpu.mib)
    return Milli(min(gpu.milli, max(demand.milli, memory)))


class Commands:
    """Serves this node's users, from the first one that asks."""

    def __init__(self, places: Places, node: Node, arbiter: Arbiter) -> None:
        self._places = places
        self._node = node
        self._arbiter = arbiter
        self._lock = -1
        self._service: Service | None = None
        self._started = asyncio.Event()

    @property
    def held(self) -> dict[str, Demand]:
        """What commands hold of each card."""
        if self._service is None:
            return {}
        from milligpu.node.commands import held_by  # noqa: PLC0415

        return held_by(self._service)

    def is_session(self, pid: int) -> bool:
        """Whether a process is a session's, which is audited there; one of a pod is not, whatever it says it is."""
        return self._service is not None and pod_of_process(pid) is None and self._service.owns(pid)

    def look_again(self) -> None:
        """The cards, or what pods hold of them, changed."""
        if self._service is not None:
            self._service.keeper.look_again()

    def recover(self) -> None:
        """Find the sessions of an agent before this one; nobody else may serve any from now on."""
        self._places.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._places.node.touch()
        self._lock = os.open(self._places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another agent serves commands on this machine: {self._places.folder}",
                hint="stop `milligpu agent --local`: a node's own agent serves them",
            ) from None
        if self._places.sessions.exists() and any(self._places.sessions.iterdir()):
            self._start()

    def _start(self) -> "Service":
        if self._service is None:
            from milligpu.node.commands import make_service  # noqa: PLC0415 - see there

            self._service = make_service(self._places, self._node, self._arbiter)
            self._service.start()
            self._started.set()
        return self._service

    async def serve(self) -> None:
        """Until cancelled; then a successor may recover."""
        try:
            listener = listen(self._places.socket, 0o666)
            server = await asyncio.start_unix_server(self._client, sock=listener, limit=LINE_MAX)
            try:
                await self._started.wait()
                await self._start().go_round()
            finally:
                server.close()
        finally:
            os.close(self._lock)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._start().serve(reader, writer)
