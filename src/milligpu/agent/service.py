"""The agent's shell: the socket and its clients, the processes that are watched, the end of what they leave."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

from milligpu.agent import protocol
from milligpu.agent.keeper import Keeper
from milligpu.agent.processes import Process, peer, session_of
from milligpu.agent.protocol import Ask, Done, Message, Resize, Take
from milligpu.agent.record import Session
from milligpu.agent.report import Reporter
from milligpu.agent.rounds import Rounds
from milligpu.agent.waiting import Waiting
from milligpu.agent.wish import Wish, describe_share, share_request
from milligpu.model.errors import BadRequest, MilligpuError
from milligpu.model.qos import parse_priority

log = logging.getLogger(__name__)

# What a command leaves on the GPU behind it is asked to end, and made to after this long.
GRACE_SECONDS = 2.0
# How often we look whether it did: these are not our children, and there may be many.
_LOOK_SECONDS = 0.05

# Twenty samples to a window; each costs microseconds.
_MEASURE_SECONDS = 0.5
# An audit asks the driver for every process: some milliseconds on a machine with many.
_AUDIT_EVERY = 4

Leftovers = Callable[[str], list[Process]]
"""A session's processes that still have a GPU open."""


class Service:
    """Serves clients for as long as anybody needs it."""

    def __init__(
        self,
        keeper: Callable[[Callable[[Session], None]], Keeper],
        rounds: Callable[[Keeper], Rounds],
        leftovers: Leftovers,
    ) -> None:
        self.keeper = keeper(self._watch)
        self._rounds = rounds(self.keeper)
        self._reporter = Reporter(self.keeper, self._rounds)
        self._leftovers = leftovers
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients = 0

    @property
    def busy(self) -> bool:
        """Whether anybody needs this agent."""
        return bool(self.keeper.busy or self._clients or self._tasks)

    def owns(self, pid: int) -> bool:
        """Whether a process was started in a session."""
        return session_of(pid) in self.keeper.sessions

    def start(self) -> None:
        """Take over what an agent before this one left, and see what it uses before anything is granted."""
        for name in self.keeper.recover():
            log.warning("session %s: its record does not read; ended", name)
            self.keeper.disk.close(name)
            self._spawn(self._clear(name, lambda name=name: self.keeper.disk.remove(name)))
        if self.keeper.sessions:
            self._rounds.audit()

    async def go_round(self) -> None:
        """Measure and audit for as long as there is anybody to look at."""
        number = 0
        while True:
            await asyncio.sleep(_MEASURE_SECONDS)
            if self.keeper.sessions:
                self._rounds.measure()
                number += 1
                if not number % _AUDIT_EVERY:
                    self._rounds.audit()

    async def idle(self, seconds: float) -> None:
        """Return when nobody has needed this agent for so long."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while clock() - since < seconds:
            await asyncio.sleep(seconds / 10)
            if self.busy:
                since = clock()

    # -- processes ---------------------------------------------------------------------------------------------

    def _watch(self, session: Session) -> None:
        handle = None if session.id in self.keeper.closing else session.process.open()
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
        self.keeper.close(session)
        self._spawn(self._clear(session, lambda: self.keeper.ended(session)))

    async def _clear(self, session: str, then: Callable[[], None]) -> None:
        """End what a session left on the GPU: the share is free when nothing of it is there any more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE_SECONDS
        asked: set[Process] = set()
        while left := self._leftovers(session):
            late = loop.time() > deadline
            for process in left:
                if late or process not in asked:
                    process.kill(signal.SIGKILL if late else signal.SIGTERM)
                    asked.add(process)
            await asyncio.sleep(_LOOK_SECONDS)
        if asked:
            log.info("session %s: %d processes outlived its command and were ended", session, len(asked))
        then()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # What is in memory may no longer be what is on disk: start over from there.
            log.critical("giving up: %r", error)
            os._exit(1)

    # -- clients -----------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it has enough."""
        found = peer(writer.get_extra_info("socket"))
        if found is None:
            writer.close()
            return
        process, handle = found
        self._clients += 1
        try:
            await _Client(self.keeper, self._reporter, process, writer).talk(reader)
        except (ConnectionError, asyncio.LimitOverrunError, ValueError):
            pass  # it left in the middle, or speaks no protocol of ours
        finally:
            self._clients -= 1
            os.close(handle)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class _Client:
    """One connection."""

    def __init__(self, keeper: Keeper, reporter: Reporter, process: Process, writer: asyncio.StreamWriter) -> None:
        self._keeper = keeper
        self._reporter = reporter
        self._process = process
        self._writer = writer
        self._waiting: Waiting | None = None

    async def talk(self, reader: asyncio.StreamReader) -> None:
        """Answer line by line."""
        try:
            while line := await reader.readline():
                try:
                    self._answer(protocol.decode_request(line))
                except MilligpuError as error:
                    self._say(protocol.refusal(error))
                await self._writer.drain()
        finally:
            if self._waiting is not None:
                self._keeper.leave(self._waiting)

    def _say(self, message: Message) -> None:
        self._writer.write(protocol.encode(message))

    def _answer(self, request: protocol.Request) -> None:
        match request:
            case Take():
                if self._waiting is not None:
                    raise BadRequest("take", "twice", "one share per process")
                share = share_request(request.count, request.milli, request.mib, request.limit)
                wanted = Wish(share, request.policy, parse_priority("priority", request.priority))
                self._waiting = self._keeper.take(
                    self._process, tuple(request.command), wanted, self._say, wait=request.wait
                )
            case Resize():
                self._say(Done(self._resize(request)))
            case Ask():
                self._say(self._reporter.state())

    def _resize(self, request: Resize) -> str:
        session = self._session(request.session)
        old = session.wish.share
        share = share_request(
            old.count,
            old.milli if request.milli is None else request.milli,
            old.mib if request.mib is None else request.mib,
            old.limit if request.limit is None else request.limit,
        )
        changed = self._keeper.resize(session, share)
        return f"{session.id}: {describe_share(old)} -> {describe_share(changed.wish.share)}"

    def _session(self, name: str) -> Session:
        found = [session for session in self._keeper.sessions.values() if name and session.id.startswith(name)]
        mine = [session for session in found if self._process.uid in (0, session.process.uid)]
        if len(mine) != 1:
            want = "the ID of a session of yours, or its unique beginning (see: milligpu ps)"
            raise BadRequest("session", name, want)
        return mine[0]
