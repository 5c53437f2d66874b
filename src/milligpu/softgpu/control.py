"""The socket for people: how the cards stand, and faults on request. It is never handed to a tenant."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.softgpu.account import Client
from milligpu.softgpu.faults import parse_fault
from milligpu.softgpu.management import Management

# A request is one line that our own command wrote.
_REQUEST_MAX = 1 << 16


class Control:
    """Answers on the control socket: nothing asked is the question how things stand."""

    def __init__(self, cards: list[Management]) -> None:
        self._cards = cards
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept people for ever."""
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
                answer: object = self._fault(request) if request else [_state(card) for card in self._cards]
            except BadRequest as error:
                answer = {"error": [error.field, str(error.value), error.want]}
            await loop.sock_sendall(connection, json.dumps(answer).encode())

    def _fault(self, text: bytes) -> dict[str, object]:
        try:
            request = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BadRequest("fault", text[:80], "a JSON object") from None
        management = self._find(str(request.pop("gpu", "")))
        management.fault(parse_fault(request))
        return {"gpu": management.uuid}

    def _find(self, name: str) -> Management:
        for management in self._cards:
            if name in (str(management.card.index), management.uuid):
                return management
        names = ", ".join(str(each.card.index) for each in self._cards)
        raise BadRequest("gpu", name, f"one of {names}, or a card's UUID")


def _state(management: Management) -> dict[str, object]:
    account, activity = management.account, management.activity
    late = activity.lateness()
    return {
        "index": account.index,
        "name": account.model.name,
        "uuid": management.uuid,
        "memory": account.memory,
        "used": account.used,
        "lost": management.condition.lost,
        "speed": activity.speed,
        "late": {"launches": late.count, "worst_ns": late.worst, "total_ns": late.total},
        "processes": [_process(client, management) for client in account.clients],
    }


def _process(client: Client, management: Management) -> dict[str, object]:
    usage = [management.activity.read(slot) for slot in client.slots]
    return {
        "pid": client.pid,
        "memory": client.memory,
        "contexts": client.contexts,
        "busy_ns": sum(each.busy for each in usage),
        "copy_ns": sum(each.copy_busy for each in usage),
    }
