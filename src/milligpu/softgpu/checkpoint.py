"""Relay checkpoint requests from one process to another, through the daemon.

Every client keeps a connection open on which it receives requests. A process that sends one connects, sends it and
disconnects. Only root may, as with a real driver.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

from milligpu.softgpu import driver_wire, frames
from milligpu.softgpu.driver_wire import DriverStatus

Reply = tuple[int, bytes]


@dataclass(slots=True)
class _CheckpointClient:
    """A process that can be checkpointed, by the connection on which it receives requests."""

    connection: socket.socket
    replies: asyncio.Queue[Reply] = field(default_factory=asyncio.Queue[Reply])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CheckpointRelay:
    """The clients of all GPUs of one daemon, by host PID."""

    def __init__(self) -> None:
        self._clients: dict[int, _CheckpointClient] = {}

    async def serve_client(self, connection: socket.socket, pid: int) -> None:
        """Read a client's replies until it disconnects."""
        client = self._clients[pid] = _CheckpointClient(connection)
        try:
            await frames.reply(connection, DriverStatus.SUCCESS, b"")
            while True:
                status, size = driver_wire.REPLY.unpack(await frames.receive(connection, driver_wire.REPLY.size))
                client.replies.put_nowait((status, await frames.receive(connection, size)))
        finally:
            if self._clients.get(pid) is client:
                del self._clients[pid]
            # Unblock a sender that still waits for this client.
            client.replies.put_nowait((DriverStatus.INVALID_VALUE, b""))

    async def relay(self, connection: socket.socket, body: bytes, *, root: bool) -> None:
        """Relay one request and send back the reply."""
        await frames.reply(connection, *(await self._forward(body) if root else (DriverStatus.NOT_PERMITTED, b"")))

    async def _forward(self, body: bytes) -> Reply:
        if len(body) < driver_wire.CHECKPOINT.size:
            return DriverStatus.INVALID_VALUE, b""
        pid, kind = driver_wire.CHECKPOINT.unpack_from(body)
        client = self._clients.get(pid)
        if client is None:
            return DriverStatus.INVALID_VALUE, b""
        payload = body[driver_wire.CHECKPOINT.size :]
        async with client.lock:
            with contextlib.suppress(ConnectionError):
                request = driver_wire.REQUEST.pack(kind, len(payload)) + payload
                await asyncio.get_running_loop().sock_sendall(client.connection, request)
                return await client.replies.get()
        return DriverStatus.INVALID_VALUE, b""
