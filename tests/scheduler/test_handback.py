"""Answers wait only where the client would otherwise close a connection, and never for long."""

import asyncio

import pytest

from milligpu.scheduler import handback
from milligpu.scheduler.handback import IDLE, Handback


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is asked next lets an answer go, unless a test says otherwise."""
    monkeypatch.setattr(handback, "LONGEST_S", 60.0)


async def settled(task: "asyncio.Task[None]") -> bool:
    """Whether it is done once everybody had a turn."""
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done()


def asked(kept: Handback) -> "asyncio.Task[None]":
    """A question whose answer is there at once."""
    kept.begin()
    return asyncio.create_task(kept.end())


def test_a_lone_bind_does_not_wait() -> None:
    async def run() -> None:
        kept = Handback()
        kept.connections = IDLE
        assert await settled(asked(kept))
        assert await settled(asked(kept))

    asyncio.run(run())


def test_an_answer_that_would_leave_a_third_connection_idle_waits_for_the_next_question() -> None:
    async def run() -> None:
        kept = Handback()
        kept.connections = IDLE + 1
        first = asked(kept)
        assert not await settled(first)
        second = asked(kept)
        assert await settled(first)
        assert not await settled(second)
        second.cancel()

    asyncio.run(run())


def test_the_oldest_answer_goes_first() -> None:
    async def run() -> None:
        kept = Handback()
        kept.connections = IDLE + 2
        kept.begin()
        first = asked(kept)
        kept.connections += 1
        second = asked(kept)
        assert not await settled(second)
        kept.begin()
        assert await settled(first)
        assert not second.done()
        second.cancel()

    asyncio.run(run())


def test_it_goes_back_when_nobody_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        kept = Handback()
        kept.connections = IDLE + 1
        await asyncio.wait_for(asked(kept), 10)
        # It no longer counts: the next one is as the first.
        await asyncio.wait_for(asked(kept), 10)

    monkeypatch.setattr(handback, "LONGEST_S", 0.001)
    asyncio.run(run())


def test_an_answer_that_was_given_up_is_not_waited_for() -> None:
    async def run() -> None:
        kept = Handback()
        kept.connections = IDLE + 1
        gone = asked(kept)
        assert not await settled(gone)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        waiting = asked(kept)
        assert not await settled(waiting)
        kept.begin()
        assert await settled(waiting)

    asyncio.run(run())
