"""A GPU's socket: serves driver libraries, which open the GPU, and management libraries, which observe it."""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

from milligpu.model.xid import APPLICATION_XIDS
from milligpu.softgpu import driver_wire, frames
from milligpu.softgpu.account import GpuClient
from milligpu.softgpu.checkpoint import CheckpointRelay
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.driver_wire import DriverMessage, DriverStatus
from milligpu.softgpu.faults import Fault
from milligpu.softgpu.management import Management
from milligpu.softgpu.nvml_wire import NvmlMessage

_CREDENTIALS = struct.Struct("3i")
# As many processes as a machine may start at once on one GPU.
_BACKLOG = 512
# What a process may still do on a lost GPU.
_RELEASES = (DriverMessage.RELEASE, DriverMessage.CONTEXT_CLOSE)


class SoftGpuServer:
    """Serves one GPU. A connection that begins with HELLO belongs to a process that has the GPU open."""

    def __init__(self, management: Management, compiler: CompileService, checkpoints: CheckpointRelay) -> None:
        self._management = management
        self._checkpoints = checkpoints
        self._account = management.account
        self._activity = management.activity
        self._late = 0
        self._compiler = compiler
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
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
            if kind >= NvmlMessage.FACTS:
                await self._management.serve(connection, kind, body, root=root)
            elif kind == DriverMessage.CHECKPOINT_CLIENT:
                await self._checkpoints.serve_client(connection, pid)
            elif kind == DriverMessage.CHECKPOINT_REQUEST:
                await self._checkpoints.relay(connection, body, root=root)
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

    async def _answer(self, connection: socket.socket, client: GpuClient, kind: int, body: bytes) -> None:
        if kind == DriverMessage.COMPILE:
            result = await self._compiler.compile(body, self._account.model.capability)
            try:
                await frames.reply(connection, result.status, result.log.encode(), result.descriptor)
            finally:
                if result.descriptor >= 0:
                    os.close(result.descriptor)
            return
        status, answer = self._decide(client, kind, body)
        greeted = kind == DriverMessage.HELLO and status is DriverStatus.SUCCESS
        await frames.reply(connection, status, answer, self._activity.descriptor if greeted else -1)

    def _decide(self, client: GpuClient, kind: int, body: bytes) -> tuple[DriverStatus, bytes]:
        account = self._account
        match kind:
            case _ if self._management.faults.lost and kind not in _RELEASES:
                return DriverStatus.UNKNOWN, b""
            case DriverMessage.HELLO:
                if body != driver_wire.HELLO.pack(driver_wire.VERSION):
                    return DriverStatus.SYSTEM_DRIVER_MISMATCH, b""
                return DriverStatus.SUCCESS, driver_wire.device(account)
            case DriverMessage.XID if len(body) == driver_wire.XID.size:
                return self._report(driver_wire.XID.unpack(body)[0])
            case DriverMessage.MEMORY:
                return DriverStatus.SUCCESS, driver_wire.MEMORY.pack(account.free, account.memory)
            case DriverMessage.CONTEXT_OPEN:
                return self._open_context(client)
            case DriverMessage.CONTEXT_CLOSE if len(body) == driver_wire.SLOT.size:
                return self._close_context(client, driver_wire.SLOT.unpack(body)[0])
            case DriverMessage.RESERVE | DriverMessage.RELEASE if len(body) == driver_wire.AMOUNT.size:
                (size,) = driver_wire.AMOUNT.unpack(body)
                if kind == DriverMessage.RESERVE:
                    return (
                        DriverStatus.SUCCESS if account.reserve(client, size) else DriverStatus.OUT_OF_MEMORY
                    ), b""
                return (DriverStatus.SUCCESS if account.release(client, size) else DriverStatus.INVALID_VALUE), b""
            case _:
                return DriverStatus.INVALID_VALUE, b""

    def _report(self, xid: int) -> tuple[DriverStatus, bytes]:
        """Accept only XIDs that applications can cause: a program cannot make a GPU look broken."""
        if xid not in APPLICATION_XIDS:
            return DriverStatus.INVALID_VALUE, b""
        self._management.inject(Fault(xid=xid))
        return DriverStatus.SUCCESS, b""

    def _log_lateness(self) -> None:
        late = self._activity.lateness()
        if late.count > self._late:
            self._late = late.count
            logging.getLogger(__name__).warning(
                "GPU %d: the CPU finished %d launches late, by up to %.1f ms",
                self._account.index,
                late.count,
                late.worst / 1e6,
            )

    def _open_context(self, client: GpuClient) -> tuple[DriverStatus, bytes]:
        slot = self._activity.open(client.pid)
        if slot is None:
            return DriverStatus.OUT_OF_MEMORY, b""
        if not self._account.open_context(client):
            self._activity.close(slot)
            return DriverStatus.OUT_OF_MEMORY, b""
        client.slots.add(slot)
        return DriverStatus.SUCCESS, driver_wire.SLOT.pack(slot)

    def _close_context(self, client: GpuClient, slot: int) -> tuple[DriverStatus, bytes]:
        if slot not in client.slots:
            return DriverStatus.INVALID_VALUE, b""
        client.slots.remove(slot)
        self._activity.close(slot)
        self._account.close_context(client)
        return DriverStatus.SUCCESS, b""


def listen(path: Path, mode: int) -> socket.socket:
    """Open a listening socket at `path`; file mode `mode` decides who may connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(_BACKLOG)
    return listener


def _is_contained(pid: int) -> bool:
    """Whether a process runs in a container: root there is not root of the machine, as a real driver sees it."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    except OSError:
        return True
