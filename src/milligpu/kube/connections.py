"""HTTP connections to one server, kept for further requests, with one request at a time on each.

A bind and a nomination are two requests for every pod; with a general HTTP client most of their cost would be the
client's. `get_url` reads one page, such as a node agent's.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from milligpu.model.errors import Unavailable


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    retry_after: str = ""
    """The header `Retry-After`."""


class ConnectionLost(ConnectionError):
    """The connection ended before the answer, so the request may or may not have been carried out."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, most: int | None) -> None:
        """`most` is how many bytes the body of an answer may have; a longer one is an error."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._most = most
        self._length = 0
        self._retry_after = ""
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self.usable = False
        """Whether it can take the next request."""

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send a request and wait for its answer; a caller that is cancelled ends the connection."""
        assert self._transport is not None
        self.usable = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Close at once, even during a request."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLost(reason))

    # -- called by the transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.usable = cast(asyncio.Transport, transport), True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "the server closed the connection"))
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(str(error))
            self.close()

    # -- called by the parser ----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode(errors="replace")

    def on_body(self, body: bytes) -> None:
        self._length += len(body)
        if self._most is not None and self._length > self._most:
            self._fail(f"the answer is longer than {self._most} bytes")
            self.close()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body, self._length = b"".join(self._body), [], 0
        retry_after, self._retry_after = self._retry_after, ""
        if self._answer is None or self._answer.done():
            self.close()  # an answer without a request
            return
        self.usable = self._parser.should_keep_alive()
        self._answer.set_result(HttpAnswer(self._parser.get_status_code(), body, retry_after))


class HttpConnections:
    """At most `limit` connections; further requests wait for one."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, limit: int, *, most: int | None = None
    ) -> None:
        """`most` is how many bytes the body of an answer may have."""
        self._where = host, port
        self._most = most
        self._tls = tls
        self._slots = asyncio.Semaphore(limit)
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send one whole request. Raises `OSError` if it cannot connect, `ConnectionLost` if that ends early."""
        async with self._slots:
            connection = self._kept() or await self._connect()
            answer = await connection.ask(request)
            self._idle.append(connection) if connection.usable else connection.close()
            return answer

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        host, port = self._where
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self._most), host, port, ssl=self._tls)
        except ssl.SSLError as error:
            raise ConnectionRefusedError(f"{host}:{port}: {error}") from None
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


async def get_url(
    url: str, *, timeout_s: float, tls: ssl.SSLContext | None = None, most: int | None = None
) -> HttpAnswer:
    """Read one page over a connection of its own, and follow no redirect; `tls` is for https. Raises `Unavailable`.

    `most` is how many bytes its body may have.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    request = f"GET {path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    port = parts.port or (443 if secure else 80)
    connections = HttpConnections(parts.hostname or "", port, tls, limit=1, most=most)
    try:
        async with asyncio.timeout(timeout_s):
            return await connections.ask(request.encode())
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"GET {url}: {type(error).__name__} {error}".rstrip()) from None
    finally:
        connections.close()
