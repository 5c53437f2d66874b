"""The sockets of a group of cards: one per card, and one that tells people how they stand."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from pathlib import Path

from milligpu.softgpu import wire
from milligpu.softgpu.account import Account, Client
from milligpu.softgpu.activity import Activity
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.wire import Kind, Status

_CREDENTIALS = struct.Struct("3i")
# As many processes as a machine may start at once against one card.
_BACKLOG = 512


class CardServer:
    """Serves one card. A connection is a process that has the card open."""

    def __init__(self, account: Account, activity: Activity, compiler: CompileService) -> None:
        self._account = account
        self._activity = activity
        self._compiler = compiler
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept clients for ever."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._client(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _client(self, connection: socket.socket) -> None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        client = self._account.connect(_CREDENTIALS.unpack(peer)[0])
        try:
            with connection, contextlib.suppress(ConnectionError, EOFError):
                while True:
                    kind, size = wire.REQUEST.unpack(await _receive(connection, wire.REQUEST.size))
                    if size > wire.LARGEST_BODY:
                        return
                    await self._answer(connection, client, kind, await _receive(connection, size))
        finally:
            self._account.disconnect(client)
            for slot in client.slots:
                self._activity.close(slot)

    async def _answer(self, connection: socket.socket, client: Client, kind: int, body: bytes) -> None:
        if kind == Kind.COMPILE:
            result = await self._compiler.compile(body)
            try:
                await _reply(connection, result.status, result.log.encode(), result.descriptor)
            finally:
                if result.descriptor >= 0:
                    os.close(result.descriptor)
            return
        status, answer = self._decide(client, kind, body)
        greeted = kind == Kind.HELLO and status is Status.SUCCESS
        await _reply(connection, status, answer, self._activity.descriptor if greeted else -1)

    def _decide(self, client: Client, kind: int, body: bytes) -> tuple[Status, bytes]:
        account = self._account
        match kind:
            case Kind.HELLO:
                if body != wire.HELLO.pack(wire.VERSION):
                    return Status.SYSTEM_DRIVER_MISMATCH, b""
                return Status.SUCCESS, wire.device(account)
            case Kind.MEMORY:
                return Status.SUCCESS, wire.MEMORY.pack(account.free, account.memory)
            case Kind.CONTEXT_OPEN:
                return self._open_context(client)
            case Kind.CONTEXT_CLOSE if len(body) == wire.SLOT.size:
                return self._close_context(client, wire.SLOT.unpack(body)[0])
            case Kind.RESERVE | Kind.RELEASE if len(body) == wire.AMOUNT.size:
                (size,) = wire.AMOUNT.unpack(body)
                if kind == Kind.RESERVE:
                    return (Status.SUCCESS if account.reserve(client, size) else Status.OUT_OF_MEMORY), b""
                return (Status.SUCCESS if account.release(client, size) else Status.INVALID_VALUE), b""
            case _:
                return Status.INVALID_VALUE, b""

    def _open_context(self, client: Client) -> tuple[Status, bytes]:
        slot = self._activity.open(client.pid)
        if slot is None:
            return Status.OUT_OF_MEMORY, b""
        if not self._account.open_context(client):
            self._activity.close(slot)
            return Status.OUT_OF_MEMORY, b""
        client.slots.add(slot)
        return Status.SUCCESS, wire.SLOT.pack(slot)

    def _close_context(self, client: Client, slot: int) -> tuple[Status, bytes]:
        if slot not in client.slots:
            return Status.INVALID_VALUE, b""
        client.slots.remove(slot)
        self._activity.close(slot)
        self._account.close_context(client)
        return Status.SUCCESS, b""


async def _receive(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    while size:
        part = await loop.sock_recv(connection, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


async def _reply(connection: socket.socket, status: Status, body: bytes, descriptor: int = -1) -> None:
    header = wire.REPLY.pack(status, len(body))
    if descriptor >= 0:
        # Eight bytes to a client that waits for them: they always fit.
        socket.send_fds(connection, [header], [descriptor])
        header = b""
    await asyncio.get_running_loop().sock_sendall(connection, header + body)


async def serve_control(listener: socket.socket, cards: list[tuple[Account, Activity]]) -> None:
    """Whoever connects receives the state as JSON."""
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        with connection, contextlib.suppress(ConnectionError):
            await loop.sock_sendall(connection, json.dumps([_state(*each) for each in cards]).encode())


def _state(account: Account, activity: Activity) -> dict[str, object]:
    late = activity.lateness()
    return {
        "index": account.index,
        "name": account.model.name,
        "uuid": f"GPU-{account.uuid}",
        "memory": account.memory,
        "used": account.used,
        "speed": activity.speed,
        "late": {"launches": late.count, "worst_ns": late.worst, "total_ns": late.total},
        "processes": [_process(client, activity) for client in account.clients],
    }


def _process(client: Client, activity: Activity) -> dict[str, object]:
    usage = [activity.read(slot) for slot in client.slots]
    return {
        "pid": client.pid,
        "memory": client.memory,
        "contexts": client.contexts,
        "busy_ns": sum(each.busy for each in usage),
        "copy_ns": sum(each.copy_busy for each in usage),
    }


def listen(path: Path) -> socket.socket:
    """A listening socket at this path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener
