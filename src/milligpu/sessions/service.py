"""The session service: serves clients over the socket, watches commands, and ends what they leave on the GPU."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

from milligpu.model.errors import BadRequest, MilligpuError
from milligpu.model.policy import parse_priority
from milligpu.model.request import describe_share
from milligpu.model.units import Mib, Milli
from milligpu.sessions import protocol
from milligpu.sessions.manager import SessionManager
from milligpu.sessions.members import session_of
from milligpu.sessions.monitor import SessionMonitor
from milligpu.sessions.protocol import (
    ReadStatus,
    RequestShare,
    ResizeShare,
    SessionMessage,
    ShareResized,
    StatusRead,
)
from milligpu.sessions.queue import QueuedCommand
from milligpu.sessions.record import Session
from milligpu.sessions.request import SessionRequest, session_share
from milligpu.sessions.status import machine_status
from milligpu.tenancy.processes import ProcessId, peer
from milligpu.wire.status import MachineStatus

log = logging.getLogger(__name__)

# Processes that a command leaves on a GPU get SIGTERM, and SIGKILL after this time.
GRACE_SECONDS = 2.0
# How often they are looked for: they are not children of the service, so it gets no signal when they end.
_LOOK_SECONDS = 0.05

# Twenty samples in the window of the rates; each takes microseconds.
_MEASURE_SECONDS = 0.5
# An audit reads every process from the driver, which takes milliseconds on a busy machine.
_AUDIT_EVERY = 4

Leftovers = Callable[[str], list[ProcessId]]
"""Lists a session's processes that still have a GPU open."""


class SessionService:
    """Serves clients until it is idle or stopped."""

    def __init__(
        self,
        manager: Callable[[Callable[[Session], None]], SessionManager],
        monitor: Callable[[SessionManager], SessionMonitor],
        leftovers: Leftovers,
    ) -> None:
        self.manager = manager(self._watch)
        self._monitor = monitor(self.manager)
        self._leftovers = leftovers
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients = 0

    @property
    def busy(self) -> bool:
        """Whether a command or client needs the service."""
        return bool(self.manager.busy or self._clients or self._tasks)

    def status(self) -> MachineStatus:
        return machine_status(self.manager, self._monitor)

    def is_session_process(self, pid: int) -> bool:
        """Whether a process was started in a session."""
        return session_of(pid) in self.manager.sessions

    def start(self) -> None:
        """Recover the sessions of the service before this one, and read what they use before granting anything."""
        for name in self.manager.recover():
            log.warning("session %s: ended, because its record cannot be read", name)
            self.manager.store.close(name)
            self._spawn(self._clear(name, lambda name=name: self.manager.store.remove(name)))
        if self.manager.sessions:
            self._monitor.audit()

    async def monitor(self) -> None:
        """Measure and audit while there are sessions, until cancelled."""
        number = 0
        while True:
            await asyncio.sleep(_MEASURE_SECONDS)
            if self.manager.busy:
                self.manager.refresh_health()
            if self.manager.sessions:
                self._monitor.measure()
                number += 1
                if not number % _AUDIT_EVERY:
                    self._monitor.audit()
            elif number:
                self._monitor.audit()  # forgets what it found of the last session
                number = 0

    async def wait_idle(self, seconds: float) -> None:
        """Return when the service has not been busy for `seconds`."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while clock() - since < seconds:
            await asyncio.sleep(seconds / 10)
            if self.busy:
                since = clock()

    # -- processes ---------------------------------------------------------------------------------------------

    def _watch(self, session: Session) -> None:
        handle = None if session.id in self.manager.closing else session.process.open()
        if handle is None:
            self._close(session.id)
            return
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._close(session.id)

        loop.add_reader(handle, gone)

    def _close(self, session: str) -> None:
        self.manager.close(session)
        self._spawn(self._clear(session, lambda: self.manager.ended(session)))

    async def _clear(self, session: str, then: Callable[[], None]) -> None:
        """End the processes that a session left on a GPU; only then its share is free."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE_SECONDS
        asked: set[ProcessId] = set()
        while left := self._leftovers(session):
            late = loop.time() > deadline
            for process in left:
                if late or process not in asked:
                    process.kill(signal.SIGKILL if late else signal.SIGTERM)
                    asked.add(process)
            await asyncio.sleep(_LOOK_SECONDS)
        if asked:
            log.info("session %s: ended %d processes that outlived its command", session, len(asked))
        then()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The state in memory may differ from the one on disk: restart from that.
            log.critical("restarting after an unexpected error: %r", error)
            os._exit(1)

    # -- clients -----------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects."""
        found = peer(writer.get_extra_info("socket"))
        if found is None:
            writer.close()
            return
        process, handle = found
        self._clients += 1
        try:
            await _Client(self.manager, self._monitor, process, writer).talk(reader)
        except (ConnectionError, asyncio.LimitOverrunError, ValueError):
            pass  # it disconnected, or sent something that is no message
        finally:
            self._clients -= 1
            os.close(handle)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class _Client:
    def __init__(
        self, manager: SessionManager, monitor: SessionMonitor, process: ProcessId, writer: asyncio.StreamWriter
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._process = process
        self._writer = writer
        self._waiting: QueuedCommand | None = None

    async def talk(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                try:
                    self._answer(protocol.decode_request(line))
                except MilligpuError as error:
                    self._say(protocol.refusal(error))
                await self._writer.drain()
        finally:
            if self._waiting is not None:
                self._manager.cancel(self._waiting)

    def _say(self, message: SessionMessage) -> None:
        self._writer.write(protocol.encode(message))

    def _answer(self, request: protocol.Request) -> None:
        match request:
            case RequestShare():
                if self._waiting is not None:
                    raise BadRequest("request", "a second share", "sent once: a process holds one share")
                share = session_share(request.count, *_amounts(request))
                gpus = None if request.gpus is None else tuple(request.gpus)
                asked = SessionRequest(share, request.policy, parse_priority("priority", request.priority), gpus)
                self._waiting = self._manager.request(
                    self._process, tuple(request.command), asked, self._say, wait=request.wait
                )
            case ResizeShare():
                self._say(ShareResized(self._resize(request)))
            case ReadStatus():
                self._manager.refresh_health()
                self._say(StatusRead(machine_status(self._manager, self._monitor)))

    def _resize(self, request: ResizeShare) -> str:
        session = self._session(request.session)
        old = session.request.share
        milli, mib, limit = _amounts(request)
        share = session_share(
            old.count,
            old.milli if milli is None else milli,
            old.mib if mib is None else mib,
            old.limit if limit is None else limit,
        )
        changed = self._manager.resize(session, share)
        return f"{session.id}: {describe_share(old)} -> {describe_share(changed.request.share)}"

    def _session(self, name: str) -> Session:
        found = [session for session in self._manager.sessions.values() if name and session.id.startswith(name)]
        own = [session for session in found if self._process.uid in (0, session.process.uid)]
        if len(own) != 1:
            want = "the ID of one of your sessions, or a unique prefix of it (see: milligpu ps)"
            raise BadRequest("session", name, want)
        return own[0]


def _amounts(request: RequestShare | ResizeShare) -> tuple[Milli | None, Mib | None, Milli | None]:
    return (
        None if request.milli is None else Milli(request.milli),
        None if request.mib is None else Mib(request.mib),
        None if request.limit is None else Milli(request.limit),
    )
