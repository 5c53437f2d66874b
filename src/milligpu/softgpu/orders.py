"""Checkpoint orders from one process to another: the daemon passes them on, and knows who may give them.

Every client keeps a connection open on which it takes orders. Whoever gives one connects, gives it and goes; only
root may, as with a real driver.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

from milligpu.softgpu import frames, wire
from milligpu.softgpu.wire import Status

Answer = tuple[int, bytes]


@dataclass(slots=True)
class _Attendant:
    """A process that takes orders."""

    connection: socket.socket
    answers: asyncio.Queue[Answer] = field(default_factory=asyncio.Queue[Answer])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Orders:
    """All processes of a group of cards, by their host pid."""

    def __init__(self) -> None:
        self._attendants: dict[int, _Attendant] = {}

    async def attend(self, connection: socket.socket, pid: int) -> None:
        """Read a process's answers until it is gone."""
        attendant = self._attendants[pid] = _Attendant(connection)
        try:
            await frames.reply(connection, Status.SUCCESS, b"")
            while True:
                status, size = wire.REPLY.unpack(await frames.receive(connection, wire.REPLY.size))
                attendant.answers.put_nowait((status, await frames.receive(connection, size)))
        finally:
            if self._attendants.get(pid) is attendant:
                del self._attendants[pid]
            # Whoever still waits for an answer gets none from it.
            attendant.answers.put_nowait((Status.INVALID_VALUE, b""))

    async def give(self, connection: socket.socket, body: bytes, *, root: bool) -> None:
        """Pass one order on, and its answer back."""
        await frames.reply(connection, *(await self._order(body) if root else (Status.NOT_PERMITTED, b"")))

    async def _order(self, body: bytes) -> Answer:
        if len(body) < wire.ORDER.size:
            return Status.INVALID_VALUE, b""
        pid, kind = wire.ORDER.unpack_from(body)
        attendant = self._attendants.get(pid)
        if attendant is None:
            return Status.INVALID_VALUE, b""
        rest = body[wire.ORDER.size :]
        async with attendant.turn:
            with contextlib.suppress(ConnectionError):
                request = wire.REQUEST.pack(kind, len(rest)) + rest
                await asyncio.get_running_loop().sock_sendall(attendant.connection, request)
                return await attendant.answers.get()
        return Status.INVALID_VALUE, b""
