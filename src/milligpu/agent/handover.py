"""Handover between two agents of one node, so that exactly one is the agent at any time.

The process that has the lock is the agent. A new process that finds it taken prepares, connects to the agent's
socket, and gets the lock. The old agent then only passes on Allocate calls of the kubelet until it is stopped. The
kernel releases the lock of a process that was killed.
"""

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import structlog

LOCK, _SOCKET = "succession.lock", "succession.sock"
_READY, _YOURS, _SETTLED = b"ready\n", b"yours\n", b"settled\n"
_LOOK_S = 0.05

log = structlog.get_logger()


class Predecessor:
    """The previous agent, as its successor sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def settled(self) -> None:
        """Report that the kubelet has registered the successor: the previous agent may end."""
        self._writer.write(_SETTLED)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the previous agent has ended."""
        with suppress(ConnectionError):
            while await self._reader.readline():
                pass
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class AgentHandover:
    """Becomes the agent of the node, and hands over to a successor."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._socket = folder / _SOCKET
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._server: asyncio.Server | None = None
        self._yielded = asyncio.Event()
        self.asked = asyncio.Event()
        """Set when a successor is ready."""
        self.settled = asyncio.Event()
        """Set when the successor has registered with the kubelet."""
        self.abandoned = asyncio.Event()
        """Set when the successor ended before that."""

    async def take_over(self) -> Predecessor | None:
        """Wait for the lock; return the previous agent if it still runs."""
        before: Predecessor | None = None
        while not self._locked():
            before = before or await self._ask()
            await asyncio.sleep(_LOOK_S)
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket))
        self._socket.chmod(0o600)
        return before

    def hand_over(self) -> None:
        """Release the lock, because this agent has stopped changing the node."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._yielded.set()

    def close(self) -> None:
        """Close socket and lock; the socket's path may be the successor's by now."""
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
        """Tell the agent that a successor is ready; None if the agent ends, or does not listen yet."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return None
        log.info("Ready to take over from the running agent")
        writer.write(_READY)
        with suppress(ConnectionError):
            if await reader.readline() == _YOURS:
                return Predecessor(reader, writer)
        writer.close()
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one successor; a second one waits until the first has the lock, and then asks that one."""
        if self.asked.is_set() or await reader.readline() != _READY:
            writer.close()
            return
        self.asked.set()
        await self._yielded.wait()
        with suppress(ConnectionError, asyncio.CancelledError):  # this process may end first
            writer.write(_YOURS)
            if await reader.readline() == _SETTLED:
                self.settled.set()
                await reader.readline()
        if not self.settled.is_set():
            self.abandoned.set()
        writer.close()
