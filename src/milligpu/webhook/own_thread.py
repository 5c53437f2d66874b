"""A thread with an event loop of its own, for what must be answered while the leader reads thousands of pods.

Python runs one thread at a time. A thread that waits gets its turn after the switch interval, so a review waits for
some milliseconds, and not until the other event loop comes back to it.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import uvloop

# Python's default is 5 ms; a review needs a few turns.
SWITCH_S = 0.001


async def run_in_thread(name: str, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a program in a thread until it ends, and raise its error here. If this is cancelled, so is it."""
    sys.setswitchinterval(SWITCH_S)
    here = asyncio.get_running_loop()
    started: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = here.create_future()
    ended: asyncio.Future[None] = here.create_future()

    async def main() -> None:
        task = asyncio.create_task(program())
        here.call_soon_threadsafe(started.set_result, (asyncio.get_running_loop(), task))
        await task

    def run() -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as found:
            error = found
        here.call_soon_threadsafe(_settle, ended, error)

    # A daemon does not keep a process alive whose main thread has ended.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await asyncio.wait([started, ended], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            loop, task = started.result()
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([ended])
        raise
    finally:
        if ended.done():
            thread.join()  # it is about to return


def _settle(ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    if error is None or isinstance(error, asyncio.CancelledError):
        ended.set_result(None)
    else:
        ended.set_exception(error)
