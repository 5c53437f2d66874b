"""Connections to one server, kept and used again: one request at a time on each, written and read as bytes.

A bind and a nomination are two requests for every pod there is. With a general client most of their cost would be
the client's own.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

import httptools


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


class Lost(ConnectionError):
    """The connection ended before the answer: whether the request was carried out, nobody knows."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None
        self.usable = False
        """Whether it can take the next request."""

    async def ask(self, request: bytes) -> Answer:
        """Send and wait; whoever stops waiting has ended the connection."""
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
        """Without regard to what is under way."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(reason))

    # -- the transport's calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.usable = cast(asyncio.Transport, transport), True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "the server hung up"))
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(str(error))
            self.close()

    # -- the parser's calls ------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._answer is None or self._answer.done():
            self.close()  # an answer that nobody asked for
            return
        self.usable = self._parser.should_keep_alive()
        self._answer.set_result(Answer(self._parser.get_status_code(), body))


class Pool:
    """At most `limit` connections at once; who finds none waits."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, limit: int) -> None:
        self._where = host, port
        self._tls = tls
        self._slots = asyncio.Semaphore(limit)
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes) -> Answer:
        """Send one whole request. Raises OSError when there is no connection, `Lost` when there was one."""
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
            _, connection = await loop.create_connection(_Connection, host, port, ssl=self._tls)
        except ssl.SSLError as error:
            raise ConnectionRefusedError(f"{host}:{port}: {error}") from None
        return connection

    def close(self) -> None:
        """End the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()
