"""Virtual time, and an asyncio event loop for each simulated process.

A paused process runs nothing, timers included, and when it continues it finds everything that arrived meanwhile, as
with SIGSTOP. A killed process never runs again.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any


class VirtualClock:
    """Runs events in the order of their times; what is due at the same time runs in the order of the calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._due, (max(when, self.now), next(self._numbers), what))

    def after(self, delay: float, what: Callable[[], object]) -> None:
        self.at(self.now + delay, what)

    def run_until(self, until: float) -> None:
        """Run everything that is due up to this time."""
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            self.events += 1
            what()
        self.now = until


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process.

    It has no files and no sleep: its timers are the clock's, and the clock runs one turn of the loop at a time. So
    turns of several processes come in the order of their times.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._virtual = clock
        self._due: deque[asyncio.Handle] = deque()
        self._woken = False
        self._paused = False
        self._dead = False
        self.die_in = 0
        """In how many turns of the loop the process is killed, with `on_death`; 0 for never."""
        self.on_death: Callable[[], None] = lambda: None
        self.set_exception_handler(self._failed)
        self.errors: list[str] = []
        """Exceptions that no task of the process caught."""

    # -- as asyncio calls it ---

    def time(self) -> float:
        return self._virtual.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._virtual.at(when, partial(self._put, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._virtual.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it to the clock, which finds that the handle was cancelled."""

    # -- life ---

    def _put(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._due.append(handle)
            if not self._woken:
                self._woken = True
                self._virtual.at(self._virtual.now, self._step)

    def _step(self) -> None:
        """Run what is ready now, once."""
        if not (self._paused or self._dead):
            self._woken = False
            self._turn()
            if self.die_in:
                self._count_down()

    def _turn(self) -> None:
        due, self._due = self._due, deque()
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for handle in due:
                if not handle.cancelled():
                    handle._run()  # pyright: ignore[reportPrivateUsage] - as every event loop does
        finally:
            asyncio._set_running_loop(outer)

    def _count_down(self) -> None:
        """Kill the process after a turn of the loop: between any two awaits of its tasks."""
        self.die_in -= 1
        if not self.die_in:
            self._virtual.after(0.0, self.on_death)

    def spawn(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[object]":
        return self.create_task(work)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused, self._woken = False, True
        self._virtual.at(self._virtual.now, self._step)

    def kill(self) -> None:
        """End the process; closing its coroutines has no effect on other processes."""
        self._dead = True
        for _ in range(20):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            for _ in range(5):
                self._turn()
        self.close()

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._dead:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
