"""One agent per node at a time, and no moment without one: a new agent takes over from one that still runs.

Whoever holds the lock is the agent. A newcomer that finds it held prepares all that takes time, says so on the
socket of the one before, and is given the lock; the one before then only passes on what the kubelet still asks it,
until it is told to stop. A lock ends with its holder's process, however that ended.
"""

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import structlog

_LOCK, _SOCKET = "succession.lock", "succession.sock"
_READY, _YOURS, _SETTLED = b"ready\n", b"yours\n", b"settled\n"
_LOOK_S = 0.05

log = structlog.get_logger()


class Predecessor:
    """The agent before this one, as this one sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def settled(self) -> None:
        """The kubelet knows us: it may end."""
        self._writer.write(_SETTLED)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def gone(self) -> None:
        """Wait for its end."""
        with suppress(ConnectionError):
            while await self._reader.readline():
                pass
        self.close()

    def close(self) -> None:
        """Leave it alone."""
        self._writer.close()


class Succession:
    """Becoming the agent, and ceasing to be it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._socket = folder / _SOCKET
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._server: asyncio.Server | None = None
        self._yielded = asyncio.Event()
        self.asked = asyncio.Event()
        """Set when a successor is ready."""
        self.settled = asyncio.Event()
        """Set when it has taken over."""
        self.abandoned = asyncio.Event()
        """Set when it went before it had."""

    async def inherit(self) -> Predecessor | None:
        """Return as the node's agent, with the one before if it still runs."""
        before: Predecessor | None = None
        while not self._locked():
            before = before or await self._ask()
            await asyncio.sleep(_LOOK_S)
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket))
        self._socket.chmod(0o600)
        return before

    def hand_over(self) -> None:
        """Everything of ours is at rest: the successor may begin."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._yielded.set()

    def close(self) -> None:
        """Let go of everything; the socket's path may be the successor's by now."""
        if self._server is not None:
            self._server.close()
        os.close(self._lock)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def _ask(self) -> Predecessor | None:
        """Tell the agent that we are ready; None when it ends, or does not listen yet."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return None
        log.info("ready to take over from the agent that runs")
        writer.write(_READY)
        with suppress(ConnectionError):
            if await reader.readline() == _YOURS:
                return Predecessor(reader, writer)
        writer.close()
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One successor; a second one waits until the first has the lock, and then asks that one."""
        if self.asked.is_set() or await reader.readline() != _READY:
            writer.close()
            return
        self.asked.set()
        await self._yielded.wait()
        with suppress(ConnectionError, asyncio.CancelledError):  # we may end first
            writer.write(_YOURS)
            if await reader.readline() == _SETTLED:
                self.settled.set()
                await reader.readline()
        if not self.settled.is_set():
            self.abandoned.set()
        writer.close()
