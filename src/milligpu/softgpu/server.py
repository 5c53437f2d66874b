"""A card's socket: driver libraries that have the card open, and management libraries that look at it."""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

from milligpu.model.xid import APPLICATION_XIDS
from milligpu.softgpu import frames, wire
from milligpu.softgpu.account import Client
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.faults import Fault
from milligpu.softgpu.management import Management
from milligpu.softgpu.orders import Orders
from milligpu.softgpu.watch import Kind as Watch
from milligpu.softgpu.wire import Kind, Status

_CREDENTIALS = struct.Struct("3i")
# As many processes as a machine may start at once against one card.
_BACKLOG = 512
# What a process may still do on a card that is lost.
_GIVES_BACK = (Kind.RELEASE, Kind.CONTEXT_CLOSE)


class CardServer:
    """Serves one card. A connection that begins with a greeting is a process that has the card open."""

    def __init__(self, management: Management, compiler: CompileService, orders: Orders) -> None:
        self._management = management
        self._orders = orders
        self._account = management.account
        self._activity = management.activity
        self._late = 0
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
        pid, uid, _ = _CREDENTIALS.unpack(peer)
        root = uid == 0 and not _is_contained(pid)
        with connection, contextlib.suppress(ConnectionError, EOFError):
            kind, body = await frames.receive_request(connection)
            if kind >= Watch.FACTS:
                await self._management.serve(connection, kind, body, root=root)
            elif kind == Kind.ATTEND:
                await self._orders.attend(connection, pid)
            elif kind == Kind.ORDER:
                await self._orders.give(connection, body, root=root)
            else:
                await self._driver(connection, pid, kind, body)

    async def _driver(self, connection: socket.socket, pid: int, kind: int, body: bytes) -> None:
        client = self._account.connect(pid)
        try:
            while True:
                await self._answer(connection, client, kind, body)
                kind, body = await frames.receive_request(connection)
        finally:
            self._management.sample()
            self._account.disconnect(client)
            for slot in client.slots:
                self._activity.close(slot)
            self._log_lateness()

    async def _answer(self, connection: socket.socket, client: Client, kind: int, body: bytes) -> None:
        if kind == Kind.COMPILE:
            result = await self._compiler.compile(body, self._account.model.capability)
            try:
                await frames.reply(connection, result.status, result.log.encode(), result.descriptor)
            finally:
                if result.descriptor >= 0:
                    os.close(result.descriptor)
            return
        status, answer = self._decide(client, kind, body)
        greeted = kind == Kind.HELLO and status is Status.SUCCESS
        await frames.reply(connection, status, answer, self._activity.descriptor if greeted else -1)

    def _decide(self, client: Client, kind: int, body: bytes) -> tuple[Status, bytes]:
        account = self._account
        match kind:
            case _ if self._management.condition.lost and kind not in _GIVES_BACK:
                return Status.UNKNOWN, b""
            case Kind.HELLO:
                if body != wire.HELLO.pack(wire.VERSION):
                    return Status.SYSTEM_DRIVER_MISMATCH, b""
                return Status.SUCCESS, wire.device(account)
            case Kind.XID if len(body) == wire.XID.size:
                return self._report(wire.XID.unpack(body)[0])
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

    def _report(self, xid: int) -> tuple[Status, bytes]:
        """A program may only report what programs can cause: it cannot make a card look broken."""
        if xid not in APPLICATION_XIDS:
            return Status.INVALID_VALUE, b""
        self._management.fault(Fault(xid=xid))
        return Status.SUCCESS, b""

    def _log_lateness(self) -> None:
        late = self._activity.lateness()
        if late.count > self._late:
            self._late = late.count
            logging.getLogger(__name__).warning(
                "GPU %d: the CPU was too late for %d launches, at worst by %.1f ms",
                self._account.index,
                late.count,
                late.worst / 1e6,
            )

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


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at this path, which those may connect to whom `mode` lets write."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(_BACKLOG)
    return listener


def _is_contained(pid: int) -> bool:
    """Whether a process is in a container: root there is not root of the machine, as a real driver sees it."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    except OSError:
        return True
