"""Answers are delayed only where the client would otherwise close a connection, and never for long."""

import asyncio

import pytest

from milligpu import http_server
from milligpu.http_server import CLIENT_IDLE_MAX, ConnectionReuse


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the next request releases an answer, unless a test says otherwise."""
    monkeypatch.setattr(http_server, "DELAY_MAX_S", 60.0)


async def settled(task: "asyncio.Task[None]") -> bool:
    """Whether it is done after a few rounds of the event loop."""
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done()


def asked(reuse: ConnectionReuse) -> "asyncio.Task[None]":
    """A request whose answer is ready at once."""
    reuse.begin()
    return asyncio.create_task(reuse.end())


def test_the_answer_to_a_single_bind_is_not_delayed() -> None:
    async def run() -> None:
        reuse = ConnectionReuse()
        reuse.connections = CLIENT_IDLE_MAX
        assert await settled(asked(reuse))
        assert await settled(asked(reuse))

    asyncio.run(run())


def test_an_answer_that_would_leave_a_third_connection_idle_waits_for_the_next_request() -> None:
    async def run() -> None:
        reuse = ConnectionReuse()
        reuse.connections = CLIENT_IDLE_MAX + 1
        first = asked(reuse)
        assert not await settled(first)
        second = asked(reuse)
        assert await settled(first)
        assert not await settled(second)
        second.cancel()

    asyncio.run(run())


def test_the_oldest_answer_is_released_first() -> None:
    async def run() -> None:
        reuse = ConnectionReuse()
        reuse.connections = CLIENT_IDLE_MAX + 2
        reuse.begin()
        first = asked(reuse)
        reuse.connections += 1
        second = asked(reuse)
        assert not await settled(second)
        reuse.begin()
        assert await settled(first)
        assert not second.done()
        second.cancel()

    asyncio.run(run())


def test_an_answer_is_sent_after_the_longest_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        reuse = ConnectionReuse()
        reuse.connections = CLIENT_IDLE_MAX + 1
        await asyncio.wait_for(asked(reuse), 10)
        # The first answer no longer counts.
        await asyncio.wait_for(asked(reuse), 10)

    monkeypatch.setattr(http_server, "DELAY_MAX_S", 0.001)
    asyncio.run(run())


def test_a_cancelled_answer_no_longer_counts() -> None:
    async def run() -> None:
        reuse = ConnectionReuse()
        reuse.connections = CLIENT_IDLE_MAX + 1
        gone = asked(reuse)
        assert not await settled(gone)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        waiting = asked(reuse)
        assert not await settled(waiting)
        reuse.begin()
        assert await settled(waiting)

    asyncio.run(run())
