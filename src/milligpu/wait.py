"""Waiting for an event, but not for ever, and not keeping other tasks waiting."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
# Each takes some 20 to 200 us: the other tasks wait for a few milliseconds.
_TURN = 20


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Return when the event is set or the time is over; the result says whether it is set."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


async def in_turns(things: Iterable[_T], do: Callable[[_T], None]) -> None:
    """Do something for each of many things, and let other tasks run in between."""
    for number, thing in enumerate(things, 1):
        do(thing)
        if number % _TURN == 0:
            await asyncio.sleep(0)
