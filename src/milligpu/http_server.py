"""HTTP around the handlers, in the service's own event loop: a parser, and nothing between it and the handler.

kube-scheduler asks one question after the other and waits for each answer: what a server adds to a request is added
to every pod. So there are no threads, no middleware and no header that nobody reads.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import cast

import httptools
import msgspec
import structlog

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.scheduler.handback import Handback

_JSON = b"application/json"
_TEXT = b"text/plain; charset=utf-8"
STANDBY = 503
_TOO_LARGE = 413
# What a head may have beside the body: as much as Go's own server allows.
_HEAD_MAX = 1 << 20
# A kube-scheduler and a few API servers have some tens of connections; more would only take our descriptors.
_CONNECTIONS_MAX = 1024
# Longer than any request to the API server: what is under way gets its answer.
_FAREWELL_S = 5.0

log = structlog.get_logger()

Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Body in, status and body out."""
Get = Callable[[], tuple[int, str]]


class Routes:
    """Paths and what answers them. Nothing that comes in brings the service down."""

    def __init__(
        self, post: Mapping[str, Post], get: Mapping[str, Get], body_max: int, overlapping: Collection[str] = ()
    ) -> None:
        """`overlapping` are paths that one client asks several questions at once of; see `handback`."""
        self._overlapping = frozenset(path.encode() for path in overlapping)
        self._post = {path.encode(): handler for path, handler in post.items()}
        self._get = {path.encode(): handler for path, handler in get.items()}
        self.body_max = body_max

    def overlaps(self, path: bytes) -> bool:
        """Whether answers may wait for the next question."""
        return path in self._overlapping

    async def answer(self, method: bytes, path: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        """Status, kind and body of the answer to one request."""
        if method == b"POST" and path in self._post:
            status, found = await self._posted(path, body)
            return status, _JSON, found
        if method == b"GET" and path in self._get:
            status, text = self._get[path]()
            return status, _TEXT, text.encode()
        return 404, _TEXT, b"not found\n"

    async def _posted(self, path: bytes, body: bytes) -> tuple[int, bytes]:
        if len(body) > self.body_max:
            return _TOO_LARGE, error_body("the body is too large")
        try:
            return await self._post[path](body)
        except (BadFormat, BadRequest) as error:
            return 400, error_body(error.message)
        except Exception as error:
            log.exception("a request failed", path=path.decode())
            return 500, error_body(f"{type(error).__name__}: {error}")


def error_body(message: str) -> bytes:
    """The extender protocol's way to say what went wrong."""
    return msgspec.json.encode({"Error": message})


@dataclass(slots=True)
class _Request:
    method: bytes
    path: bytes
    body: bytes
    last: bool
    """Whether the client wants no further answer on this connection."""


class _Connection(asyncio.Protocol):
    """One client: requests are answered in the order in which they came."""

    def __init__(self, routes: Routes, open_: "set[_Connection]", handback: Handback) -> None:
        self._routes = routes
        self._open = open_
        self._handback = handback
        self._posts = False
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._received = 0
        self._waiting: deque[_Request] = deque()
        self.answering: asyncio.Task[None] | None = None

    # -- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        if len(self._open) > _CONNECTIONS_MAX:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._open.discard(self)
        self._handback.connections -= self._posts
        self._waiting.clear()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._routes.body_max + _HEAD_MAX:
            self._refuse(_TOO_LARGE, "the request is too large")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "no other protocol is spoken here")
        except httptools.HttpParserError as error:
            self._refuse(400, str(error))

    # -- the parser's calls ------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        last = not self._parser.should_keep_alive()
        path = self._url.partition(b"?")[0]
        self._waiting.append(_Request(self._parser.get_method(), path, b"".join(self._body), last))
        self._url, self._body, self._received = b"", [], 0
        if self.answering is None and self._transport is not None:
            # What else the client sends waits in the kernel.
            self._transport.pause_reading()
            self.answering = asyncio.get_running_loop().create_task(self._answer())

    # -- answers -----------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            if not self._posts and request.method == b"POST":
                self._posts = True
                self._handback.connections += 1
            overlaps = self._routes.overlaps(request.path)
            if overlaps:
                self._handback.begin()
            status, kind, body = await self._routes.answer(request.method, request.path, request.body)
            if overlaps:
                await self._handback.end()
            # kube-scheduler keeps its connections: one that a standby answers must find its way to the leader.
            self._write(status, kind, body, last=request.last or status == STANDBY)
        self.answering = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write(self, status: int, kind: bytes, body: bytes, *, last: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = _HEADS[status] + kind + b"\r\nContent-Length: %d\r\n" % len(body)
        self._transport.write(head + (b"Connection: close\r\n\r\n" if last else b"\r\n") + body)
        if last:
            self.close()

    def _refuse(self, status: int, message: str) -> None:
        """What cannot be read has no end: say so and hang up."""
        self._write(status, _JSON, error_body(message), last=True)

    def close(self) -> None:
        """Hang up once all is written."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()


_HEADS = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\nContent-Type: ".encode() for each in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form; with `clients`, only who has a certificate of that authority is let in."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def context(self) -> ssl.SSLContext:
        """As a server needs it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            context.load_verify_locations(self.clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@asynccontextmanager
async def serving(routes: Routes, host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """Answer requests while the block runs, on the port that it is given; 0 takes any."""
    connections: set[_Connection] = set()
    handback = Handback()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(routes, connections, handback), host, port, ssl=tls
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        tasks = [each.answering for each in connections if each.answering is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL_S)
        for connection in tuple(connections):
            connection.close()
