"""HTTP around the handlers: granian (RSGI) in the service's own event loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import structlog
from granian.server.embed import Server

from milligpu.model.errors import BadFormat, BadRequest

_JSON = [("content-type", "application/json")]
_TEXT = [("content-type", "text/plain; charset=utf-8")]
# kube-scheduler keeps its connections: one that a standby answers must find its way to the leader.
_CLOSE = [*_JSON, ("connection", "close")]
_START_DEADLINE_S = 10.0
STANDBY = 503

log = structlog.get_logger()


class Scope(Protocol):
    """What RSGI tells about a request."""

    proto: str
    method: str
    path: str


class Exchange(Protocol):
    """RSGI's request and response."""

    async def __call__(self) -> bytes:
        """The body."""
        ...

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer."""
        ...


Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Body in, status and body out."""
Get = Callable[[], tuple[int, str]]


class Routes:
    """Paths and what answers them. Nothing that comes in brings the service down."""

    def __init__(self, post: Mapping[str, Post], get: Mapping[str, Get], body_max: int) -> None:
        self._post = post
        self._get = get
        self._body_max = body_max

    async def __rsgi__(self, scope: Scope, exchange: Exchange) -> None:
        """Answer one request."""
        if scope.proto != "http":
            return
        if scope.method == "POST" and scope.path in self._post:
            status, body = await self._answer(scope.path, await exchange())
            exchange.response_bytes(status, _CLOSE if status == STANDBY else _JSON, body)
        elif scope.method == "GET" and scope.path in self._get:
            status, text = self._get[scope.path]()
            exchange.response_bytes(status, _TEXT, text.encode())
        else:
            exchange.response_bytes(404, _TEXT, b"not found\n")

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if len(body) > self._body_max:
            return 413, b'{"Error":"the body is too large"}'
        try:
            return await self._post[path](body)
        except (BadFormat, BadRequest) as error:
            return 400, error_body(error.message)
        except Exception as error:
            log.exception("a request failed", path=path)
            return 500, error_body(f"{type(error).__name__}: {error}")


def error_body(message: str) -> bytes:
    """The extender protocol's way to say what went wrong."""
    return msgspec.json.encode({"Error": message})


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form; with `clients`, only who has a certificate of that authority is let in."""

    certificate: Path
    key: Path
    clients: Path | None = None


@asynccontextmanager
async def serving(routes: Routes, host: str, port: int, tls: Tls | None = None) -> AsyncGenerator[None]:
    """Answer requests while the block runs."""
    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"ssl_cert": tls.certificate, "ssl_key": tls.key}
        if tls.clients is not None:
            secure |= {"ssl_ca": tls.clients, "ssl_client_verify": True}
    server: Any = cast(Any, Server)(routes, host, port, websockets=False, log_enabled=False, **secure)
    task = asyncio.create_task(server.serve())
    try:
        await _reachable(host, port, task)
        yield
    finally:
        server.stop()
        await task


async def _reachable(host: str, port: int, task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(_START_DEADLINE_S):
        while True:
            if task.done():
                task.result()
                raise RuntimeError("the server ended before it began")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1" if host in {"", "0.0.0.0"} else host, port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
