"""Calls that may hang, each in a thread of its own that is given up after a deadline."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


class PatientCalls:
    """Makes calls with a deadline. A call that hangs keeps one thread; it is not made again until it returns."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._running: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a call has not returned yet."""
        return any(not answer.done() for _, answer in self._running.values())

    async def call(self, name: str, function: Callable[[], _T]) -> _T:
        """Return the answer, or raise TimeoutError; while a call of this name runs, wait for that one."""
        if name not in self._running or self._running[name][1].done():
            self._running[name] = self._now(), self._start(name, function)
        since, answer = self._running[name]
        left = since + self._seconds - self._now()
        return cast(_T, await asyncio.wait_for(asyncio.shield(answer), max(0.0, left)))

    @staticmethod
    def _start(name: str, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        # An answer that arrives after its caller has given up is not an error.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        def finish(result: object, error: BaseException | None) -> None:
            if not answer.done():
                answer.set_result(result) if error is None else answer.set_exception(error)

        def run() -> None:
            result, failure = None, None
            try:
                result = function()
            except Exception as error:
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, failure)

        threading.Thread(target=run, name=name, daemon=True).start()
        return answer
