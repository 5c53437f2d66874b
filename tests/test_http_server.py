"""HTTP as clients see it: requests are answered in order, and malformed ones are refused."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from milligpu import http_server
from milligpu.http_server import STANDBY, HttpResponse, HttpRoutes, TlsServerFiles, serving, text_response
from milligpu.model.errors import BadRequest
from milligpu.webhook.certificates import issue_certificate

BODY_MAX = 100_000


async def echo(body: bytes) -> tuple[int, bytes]:
    await asyncio.sleep(0)
    return 200, body


async def standby(_: bytes) -> tuple[int, bytes]:
    return STANDBY, b"{}"


async def bad(_: bytes) -> tuple[int, bytes]:
    raise BadRequest("field", "value", "another")


async def broken(_: bytes) -> tuple[int, bytes]:
    raise ZeroDivisionError


async def livez() -> HttpResponse:
    return text_response("ok\n")


async def broken_page() -> HttpResponse:
    raise ZeroDivisionError


ROUTES = HttpRoutes(
    post={"/echo": echo, "/standby": standby, "/bad": bad, "/broken": broken},
    get={"/livez": livez, "/broken": broken_page},
    body_max=BODY_MAX,
    overlapping=("/echo",),
)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]


def talk(conversation: Talk, tls: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None) -> Any:
    """Serve in the loop that the service has, and talk to it."""

    async def run() -> Any:
        async with asyncio.timeout(30), serving(ROUTES, "127.0.0.1", 0, tls) as port:
            name = "localhost" if client else None
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
            try:
                return await conversation(reader, writer)
            finally:
                writer.close()

    return uvloop.run(run())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[bytes]:
        writer.write(b"".join(post("/echo", str(n).encode()) for n in range(500)))
        return [(await answer(reader))[1] for _ in range(500)]

    assert talk(conversation) == [str(n).encode() for n in range(500)]


def test_a_body_in_pieces_or_chunks_is_read_as_one_body() -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[tuple[int, bytes]]:
        for piece in (post("/echo", b"x" * 50_000)[at : at + 997] for at in range(0, 51_000, 997)):
            writer.write(piece)
            await writer.drain()
        first = await answer(reader)
        writer.write(
            b"POST /echo?q=1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        return [first, await answer(reader)]

    assert talk(conversation) == [(200, b"x" * 50_000), (200, b"abcde")]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("/bad", b""), 400),
        (post("/broken", b""), 500),
        (post("/nowhere", b""), 404),
        (post("/livez", b""), 405),
        (post("/echo", b"x" * (BODY_MAX + 1)), 413),
        (b"GET /livez HTTP/1.1\r\n\r\n", 200),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"GET /echo HTTP/1.1\r\n\r\n", 405),
    ],
)
def test_after_a_refused_request_the_connection_serves_the_next(request_: bytes, status: int) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[int]:
        writer.write(request_)
        first = (await answer(reader))[0]
        writer.write(post("/echo", b"again"))
        return [first, (await answer(reader))[0]]

    assert talk(conversation) == [status, 200]


@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01 no HTTP at all\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nX: " + b"x" * 2_000_000,
    ],
)
def test_bytes_that_are_no_request_end_the_connection(noise: bytes) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(noise)
        try:
            return await reader.read(-1)
        except ConnectionError:
            return b""  # it hung up while we were still talking

    assert talk(conversation)[:10] in {b"HTTP/1.1 4", b""}


def test_a_standby_closes_the_connection_after_its_answer() -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post("/standby", b""))
        return await reader.read(-1)

    text = talk(conversation)
    assert text.startswith(b"HTTP/1.1 503 ")
    assert b"Connection: close" in text


def contexts(folder: Path, *, with_client: bool) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = issue_certificate(["localhost"], datetime.now(UTC))
    files = {"crt": made.certificate, "key": made.key, "ca": made.authority}
    for name, text in files.items():
        (folder / name).write_bytes(text)
    client = ssl.create_default_context(cafile=folder / "ca")
    if with_client:
        client.load_cert_chain(folder / "crt", folder / "key")
    return TlsServerFiles(folder / "crt", folder / "key", folder / "ca").context(), client


def test_with_a_client_ca_a_client_without_a_certificate_is_rejected(tmp_path: Path) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
        writer.write(post("/echo", b"hello"))
        return await answer(reader)

    server, stranger = contexts(tmp_path, with_client=False)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        talk(conversation, server, stranger)


def test_requests_in_progress_are_answered_before_the_server_closes() -> None:
    async def run() -> tuple[int, bytes]:
        go = asyncio.Event()

        async def slow(_: bytes) -> tuple[int, bytes]:
            await go.wait()
            return 200, b"done"

        async with asyncio.timeout(30):
            async with serving(HttpRoutes(post={"/slow": slow}, body_max=10), "127.0.0.1", 0) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post("/slow", b""))
                await asyncio.sleep(0.05)
                asyncio.get_running_loop().call_later(0.05, go.set)
            found = await answer(reader)
            writer.close()
            return found

    assert uvloop.run(run()) == (200, b"done")


def test_an_answer_that_would_leave_a_third_connection_idle_is_delayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), serving(ROUTES, "127.0.0.1", 0) as port:
            ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for reader, writer in ends:
                writer.write(post("/bad", b""))
                assert (await answer(reader))[0] == 400
            (first, ask_first), (second, ask_second), (_, third) = ends
            ask_first.write(post("/echo", b"1"))
            waiting = asyncio.create_task(answer(first))
            ask_second.write(post("/echo", b"2"))
            assert await waiting == (200, b"1")
            waiting = asyncio.create_task(answer(second))
            third.close()
            await third.wait_closed()
            ask_first.write(post("/echo", b"3"))
            assert await waiting == (200, b"2")
            assert await answer(first) == (200, b"3")  # nobody comes after it: two connections are left
            ask_first.close()
            ask_second.close()

    monkeypatch.setattr(http_server, "DELAY_MAX_S", 60.0)
    uvloop.run(run())
