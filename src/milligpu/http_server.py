"""The HTTP server of every program: extender, webhook and the agent's pages, in the program's own event loop.

kube-scheduler sends one request after the other and waits for each answer, so the server's own time is added to
every pod. This one is a parser with nothing between it and the handlers: no threads, no middleware.
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

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
STANDBY = 503
_NOT_FOUND, _NOT_ALLOWED, _TOO_LARGE, _FAILED = 404, 405, 413, 500
# Request line and headers; Go's server allows as much.
_HEAD_MAX = 1 << 20
# A kube-scheduler and a few API servers have some tens of connections; more would only use up file descriptors.
_CONNECTIONS_MAX = 1024
# Longer than any request to the API server, so that requests in progress are answered before the server closes.
_CLOSE_S = 5.0
# Idle connections that Go's http.Transport keeps for each host by default: kube-scheduler uses one for filter, and
# has one for the next bind.
CLIENT_IDLE_MAX = 2
# Longer than the time between two binds of a burst.
DELAY_MAX_S = 0.05

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a handler of GET returns."""

    status: int
    body: bytes
    content_type: str = TEXT


def text_response(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(status, text.encode())


def json_response(document: object) -> HttpResponse:
    return HttpResponse(200, msgspec.json.encode(document), JSON)


Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Takes a body; returns a status and a body of JSON."""
Get = Callable[[], Awaitable[HttpResponse]]


class HttpRoutes:
    """Paths and their handlers. An exception in a handler becomes an error answer; it never ends the service."""

    def __init__(
        self,
        *,
        post: Mapping[str, Post] | None = None,
        get: Mapping[str, Get] | None = None,
        body_max: int = 0,
        overlapping: Collection[str] = (),
    ) -> None:
        """`overlapping` are paths to which one client sends several requests at once; see `ConnectionReuse`."""
        self._post = {path.encode(): handler for path, handler in (post or {}).items()}
        self._get = {path.encode(): handler for path, handler in (get or {}).items()}
        self._overlapping = frozenset(path.encode() for path in overlapping)
        self.body_max = body_max

    def overlaps(self, path: bytes) -> bool:
        return path in self._overlapping

    async def answer(self, method: bytes, path: bytes, body: bytes) -> HttpResponse:
        try:
            if method == b"POST" and path in self._post:
                if len(body) > self.body_max:
                    return _error(_TOO_LARGE, "the body is too large")
                status, found = await self._post[path](body)
                return HttpResponse(status, found, JSON)
            if method == b"GET" and path in self._get:
                return await self._get[path]()
        except (BadFormat, BadRequest) as error:
            return _error(400, error.message)
        except Exception as error:
            log.exception("Request failed", path=path.decode(errors="replace"))
            return _error(_FAILED, f"{type(error).__name__}: {error}")
        if path in self._post or path in self._get:
            return text_response("method not allowed\n", _NOT_ALLOWED)
        return text_response("not found\n", _NOT_FOUND)


def error_body(message: str) -> bytes:
    """Encode an error as kube-scheduler's extender protocol does."""
    return msgspec.json.encode({"Error": message})


def _error(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, error_body(message), JSON)


class ConnectionReuse:
    """Delays answers so that the client keeps its connections.

    Go's HTTP client keeps two idle connections to a host and closes others. When binds overlap, kube-scheduler
    would open a connection for most of them, each with a TLS handshake. So an answer that would leave a third
    connection idle waits for the next such request, for at most `DELAY_MAX_S`. The pod is already bound by then;
    only the answer is late. `bench/scheduler.py --reuse` measures what this saves.
    """

    def __init__(self) -> None:
        self.connections = 0
        """How many connections have sent a POST."""
        self._busy = 0
        self._delayed: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        """Count a request that arrived, and release the answers that waited for it."""
        self._busy += 1
        while self._delayed and self.connections - self._busy < CLIENT_IDLE_MAX:
            self._release(self._delayed.popleft())

    async def end(self) -> None:
        """Wait until the answer to a request should be sent."""
        if self.connections - self._busy < CLIENT_IDLE_MAX:
            self._busy -= 1
            return
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._delayed.append(answer)
        timer = loop.call_later(DELAY_MAX_S, self._release, answer)
        try:
            await answer
        finally:
            timer.cancel()
            if answer.cancelled():
                self._busy -= 1

    def _release(self, answer: "asyncio.Future[None]") -> None:
        if not answer.done():
            answer.set_result(None)
            self._busy -= 1


@dataclass(slots=True)
class _Request:
    method: bytes
    path: bytes
    body: bytes
    last: bool
    """Whether the client closes the connection after the answer."""


class _Connection(asyncio.Protocol):
    """One client; its requests are answered in order."""

    def __init__(self, routes: HttpRoutes, open_: "set[_Connection]", reuse: ConnectionReuse) -> None:
        self._routes = routes
        self._open = open_
        self._reuse = reuse
        self._posts = False
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._received = 0
        self._waiting: deque[_Request] = deque()
        self.answering: asyncio.Task[None] | None = None

    # -- called by the transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)
        if len(self._open) > _CONNECTIONS_MAX:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._open.discard(self)
        self._reuse.connections -= self._posts
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
            self._refuse(400, "protocol upgrades are not supported")
        except httptools.HttpParserError as error:
            self._refuse(400, str(error))

    # -- called by the parser ----------------------------------------------------------------------------------

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
            # Further requests wait in the socket's buffer.
            self._transport.pause_reading()
            self.answering = asyncio.get_running_loop().create_task(self._answer())

    # -- answers -----------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            if not self._posts and request.method == b"POST":
                self._posts = True
                self._reuse.connections += 1
            overlaps = self._routes.overlaps(request.path)
            if overlaps:
                self._reuse.begin()
            response = await self._routes.answer(request.method, request.path, request.body)
            if overlaps:
                await self._reuse.end()
            # kube-scheduler keeps its connections: close a standby's, so that the next one may reach the leader.
            self._write(response, last=request.last or response.status == STANDBY)
        self.answering = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write(self, response: HttpResponse, *, last: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        kind, length = response.content_type.encode(), len(response.body)
        head = _HEADS[response.status] + kind + b"\r\nContent-Length: %d\r\n" % length
        self._transport.write(head + (b"Connection: close\r\n\r\n" if last else b"\r\n") + response.body)
        if last:
            self.close()

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection, because the end of a request that cannot be parsed is unknown."""
        self._write(_error(status, message), last=True)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()


_HEADS = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\nContent-Type: ".encode() for each in HTTPStatus}


@dataclass(frozen=True, slots=True)
class TlsServerFiles:
    """PEM files of a server; with `clients`, a client needs a certificate signed by that CA."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            context.load_verify_locations(self.clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@asynccontextmanager
async def serving(
    routes: HttpRoutes, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Serve while the block runs; yields the port, which the system chooses if `port` is 0."""
    connections: set[_Connection] = set()
    reuse = ConnectionReuse()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(routes, connections, reuse), host, port, ssl=tls
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        tasks = [each.answering for each in connections if each.answering is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        for connection in tuple(connections):
            connection.close()
