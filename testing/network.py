"""A network between two programs of this machine: a TCP proxy that delays every byte, and can fall silent.

The kernels that tests run on have no netem. The delay is of one direction, so a round trip takes twice as long.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

_CHUNK = 256 << 10
# Data on the way in one direction: more than bandwidth times delay of what runs here.
_CHUNKS_ON_THE_WAY = 256


OnTheWay = asyncio.Queue[tuple[float, bytes]]
"""Data with the time at which they arrive."""


class SlowNetwork:
    """Forwards connections from a port of its own to an address."""

    def __init__(self, host: str, port: int, one_way_s: float = 0.0) -> None:
        self._target = (host, port)
        self._delay = one_way_s
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK))
        self.port = int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Deliver nothing more; both sides keep their connections, and hear nothing."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def thaw(self) -> None:
        """Deliver again, first what was on the way."""
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_CHUNK)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, far_writer))
                group.create_task(self._forward(far_reader, writer))
        except* (OSError, EOFError, asyncio.CancelledError):
            pass  # one side closed it, so the other one hears of it, too; or the network is closed
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_the_way: OnTheWay = asyncio.Queue(_CHUNKS_ON_THE_WAY)
        clock = self._loop.time
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._deliver(on_the_way, writer))
                while True:
                    data = await reader.read(_CHUNK)
                    await on_the_way.put((clock() + self._delay, data))
                    if not data:
                        return
        finally:
            with suppress(OSError):
                writer.close()

    async def _deliver(
        self, on_the_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await on_the_way.get()
            await self._sleep_until(due)
            await self._open.wait()
            if not data:
                raise EOFError
            writer.write(data)
            await writer.drain()

    async def _sleep_until(self, due: float) -> None:
        """Sleep; the event loop wakes up a fraction of a millisecond late, so the last part is spent looking."""
        left = due - self._loop.time()
        if left > _SPIN_S:
            await asyncio.sleep(left - _SPIN_S)
        while self._loop.time() < due:
            await asyncio.sleep(0)


_SPIN_S = 0.0005
