"""The control socket, for people: the state of the GPUs, and fault injection. Tenants never get it."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.softgpu.account import GpuClient
from milligpu.softgpu.faults import parse_fault
from milligpu.softgpu.management import Management

# A request is one line, written by our own command.
_REQUEST_MAX = 1 << 16


class Control:
    """Answers on the control socket; an empty request returns the state of all GPUs."""

    def __init__(self, gpus: list[Management]) -> None:
        self._gpus = gpus
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._answer(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection, contextlib.suppress(ConnectionError):
            request = b""
            while (part := await loop.sock_recv(connection, _REQUEST_MAX)) and len(request) < _REQUEST_MAX:
                request += part
            try:
                answer: object = self._fault(request) if request else [_state(gpu) for gpu in self._gpus]
            except BadRequest as error:
                answer = {"error": [error.field, None if error.value is None else str(error.value), error.want]}
            await loop.sock_sendall(connection, json.dumps(answer).encode())

    def _fault(self, text: bytes) -> dict[str, object]:
        try:
            request = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BadRequest("fault", text[:80], "a JSON object") from None
        management = self._find(str(request.pop("gpu", "")))
        management.inject(parse_fault(request))
        return {"gpu": management.uuid}

    def _find(self, name: str) -> Management:
        for management in self._gpus:
            if name in (str(management.gpu.index), management.uuid):
                return management
        names = ", ".join(str(each.gpu.index) for each in self._gpus)
        raise BadRequest("gpu", name, f"one of {names}, or a GPU's UUID")


def _state(management: Management) -> dict[str, object]:
    account, activity = management.account, management.activity
    late = activity.lateness()
    return {
        "index": account.index,
        "name": account.model.name,
        "uuid": management.uuid,
        "memory": account.memory,
        "used": account.used,
        "lost": management.faults.lost,
        "speed": activity.speed,
        "late": {"launches": late.count, "worst_ns": late.worst, "total_ns": late.total},
        "processes": [_process(client, management) for client in account.clients],
    }


def _process(client: GpuClient, management: Management) -> dict[str, object]:
    usage = [management.activity.read(slot) for slot in client.slots]
    return {
        "pid": client.pid,
        "memory": client.memory,
        "contexts": client.contexts,
        "busy_ns": sum(each.busy for each in usage),
        "copy_ns": sum(each.copy_busy for each in usage),
    }
