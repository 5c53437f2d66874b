"""Requests to a server that answers, hangs up, stays silent or was never there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from milligpu.http_server import HttpResponse, HttpRoutes, serving, text_response
from milligpu.kube.connections import ConnectionLost, HttpAnswer, HttpConnections, get_url
from milligpu.model.errors import Unavailable

ASK = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Use = Callable[[HttpConnections, list[int]], Awaitable[Any]]


def against(answers: list[bytes | None], use: Use) -> Any:
    """Use a pool against a server that gives these answers on each of its connections; None hangs up."""

    async def run() -> Any:
        opened: list[int] = []
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(1)
            writers.append(writer)
            for each in answers:
                await reader.readuntil(b"\r\n\r\n")
                if each is None:
                    break
                writer.write(each)
            writer.close()

        async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            pool = HttpConnections("127.0.0.1", server.sockets[0].getsockname()[1], None, 4)
            try:
                return await use(pool, opened)
            finally:
                pool.close()
                for writer in writers:
                    writer.close()

    return uvloop.run(run())


def ok(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(body), more) + body


CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


def test_one_connection_serves_one_request_after_the_other() -> None:
    async def use(pool: HttpConnections, opened: list[int]) -> Any:
        return [await pool.ask(ASK), await pool.ask(ASK), len(opened)]

    assert against([ok(b"a"), CHUNKED], use) == [HttpAnswer(200, b"a"), HttpAnswer(201, b"abc"), 1]


def test_a_server_that_will_close_is_connected_to_again() -> None:
    async def use(pool: HttpConnections, opened: list[int]) -> Any:
        return [await pool.ask(ASK), await pool.ask(ASK), len(opened)]

    assert against([ok(b"a", b"Connection: close\r\n")], use) == [HttpAnswer(200, b"a"), HttpAnswer(200, b"a"), 2]


def test_no_more_than_the_limit_are_open_at_once() -> None:
    async def use(pool: HttpConnections, opened: list[int]) -> Any:
        await asyncio.gather(*(pool.ask(ASK) for _ in range(40)))
        return len(opened)

    assert against([ok(b"a")] * 40, use) <= 4


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", b"nonsense\r\n\r\n"])
def test_without_a_complete_answer_the_connection_counts_as_lost(answer: bytes | None) -> None:
    async def use(pool: HttpConnections, _: list[int]) -> Any:
        with pytest.raises(ConnectionLost):
            await pool.ask(ASK)

    against([answer], use)


def test_the_answer_to_a_cancelled_request_does_not_reach_the_next() -> None:
    async def use(pool: HttpConnections, opened: list[int]) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.ask(ASK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.ask(ASK)
        return len(opened)

    assert against([b""] * 9, use) == 2


def test_a_refused_connection_means_that_nothing_was_sent() -> None:
    async def run() -> None:
        async with await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await HttpConnections("127.0.0.1", port, None, 1).ask(ASK)

    uvloop.run(run())


def test_a_page_is_read_by_its_url() -> None:
    async def page() -> HttpResponse:
        return text_response("not registered\n", 503)

    async def run() -> HttpAnswer:
        async with serving(HttpRoutes(get={"/readyz": page}), "127.0.0.1", 0) as port:
            return await get_url(f"http://127.0.0.1:{port}/readyz?verbose", timeout_s=10)

    assert uvloop.run(run()) == HttpAnswer(503, b"not registered\n")


def test_a_page_of_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"GET http://127.0.0.1:1/x: ConnectionRefusedError"):
        uvloop.run(get_url("http://127.0.0.1:1/x", timeout_s=10))
