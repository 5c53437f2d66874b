"""Virtual time, and an asyncio event loop for each simulated process.

A paused process runs nothing, timers included, and when it continues it finds everything that arrived meanwhile, as
with SIGSTOP. A killed process never runs again.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from itertools import count
from typing import Any


class VirtualClock:
    """Runs events in the order of their times; what is due at the same time runs in the order of the calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._due: deque[Callable[[], object]] = deque()
        """What is due now; nothing later is due before it."""
        self._numbers = count()

    def soon(self, what: Callable[[], object]) -> None:
        """Run this at the present time, after all that is due already."""
        self._due.append(what)

    def at(self, when: float, what: Callable[[], object]) -> None:
        if when <= self.now:
            self._due.append(what)
        else:
            heapq.heappush(self._later, (when, next(self._numbers), what))

    def after(self, delay: float, what: Callable[[], object]) -> None:
        self.at(self.now + delay, what)

    def run_until(self, until: float) -> None:
        """Run everything that is due up to this time."""
        due, later = self._due, self._later
        while True:
            while due:
                self.events += 1
                due.popleft()()
            if not later or later[0][0] > until:
                break
            self.now = later[0][0]
            while later and later[0][0] == self.now:
                due.append(heapq.heappop(later)[2])
        self.now = max(self.now, until)


class _Handle(asyncio.TimerHandle):
    """A callback of one loop, without what asyncio keeps for its debug mode; the clock calls it when it is due."""

    _loop: "ProcessLoop"

    def __init__(  # pyright: ignore[reportMissingSuperCall]
        self, loop: "ProcessLoop", callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def __call__(self) -> None:
        if not self._cancelled:
            self._loop.put(self)


class ProcessLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process.

    It has no files and no sleep: its timers are the clock's, and the clock runs one turn of the loop at a time. So
    turns of several processes come in the order of their times.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._virtual = clock
        self._due: list[_Handle] = []
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
        handle = _Handle(self, callback, args, context)
        self.put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(self, callback, args, context)
        self._virtual.at(when, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(self, callback, args, context)
        self._virtual.at(self._virtual.now + delay, handle)
        return handle

    # -- life ---

    def put(self, handle: _Handle) -> None:
        """Run this with the next turn."""
        self._due.append(handle)
        if not self._woken:
            self._woken = True
            self._virtual.soon(self._step)

    def _step(self) -> None:
        """Run what is ready now, once."""
        if not (self._paused or self._dead):
            self._woken = False
            self._turn()
            if self.die_in:
                self._count_down()

    def _turn(self) -> None:
        due, self._due = self._due, []
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
        self._virtual.soon(self._step)

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
