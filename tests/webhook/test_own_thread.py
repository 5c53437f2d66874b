"""A program in a thread of its own: it goes on while the other event loop is busy, and both end together."""

import asyncio
import threading

import pytest

from milligpu.webhook.own_thread import run_in_thread


def test_it_goes_on_while_the_other_event_loop_is_blocked() -> None:
    started, answered = threading.Event(), threading.Event()

    async def program() -> None:
        started.set()
        for _ in range(10):
            await asyncio.sleep(0.001)
        answered.set()

    async def main() -> bool:
        running = asyncio.create_task(run_in_thread("test", program))
        while not started.is_set():
            await asyncio.sleep(0.001)
        gone_on = answered.wait(30)  # blocks this event loop
        await running
        return gone_on

    assert asyncio.run(main())


def test_its_error_ends_the_caller() -> None:
    async def program() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the port is taken")

    with pytest.raises(RuntimeError, match="the port is taken"):
        asyncio.run(run_in_thread("test", program))


def test_cancelled_it_ends_in_order_before_the_caller_does() -> None:
    steps: list[str] = []

    async def program() -> None:
        try:
            steps.append("serves")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            steps.append("has closed")

    async def main() -> None:
        running = asyncio.create_task(run_in_thread("test", program))
        while not steps:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        steps.append("caller ends")

    asyncio.run(main())
    assert steps == ["serves", "has closed", "caller ends"]


def test_cancelled_before_it_began_it_ends_too() -> None:
    async def program() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        running = asyncio.create_task(run_in_thread("early", program))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert "early" not in {each.name for each in threading.enumerate() if each.is_alive()}
