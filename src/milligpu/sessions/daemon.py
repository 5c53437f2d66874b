"""The agent's process: `python -m milligpu.agent FOLDER`, started by whoever needs it first, or a service.

The process that is started binds the socket and goes into the background, so whoever started it can connect when
it returns. What stays is a small parent that holds socket and lock, and the agent as its child. An agent that is
killed is replaced at once, and meanwhile clients find the socket open and wait.
"""

import argparse
import asyncio
import fcntl
import logging
import os
import platform
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milligpu.agent.arbiter import Arbiter
from milligpu.agent.keeper import Keeper
from milligpu.agent.machine import Hardware, OwnHardware
from milligpu.agent.places import Places, listen
from milligpu.agent.processes import Process, members, memory_maps
from milligpu.agent.protocol import LINE_MAX
from milligpu.agent.rounds import Rounds
from milligpu.agent.service import Service
from milligpu.agent.sessions import Sessions
from milligpu.model.errors import Unavailable

# An agent that dies more often than this has a reason that another start does not cure.
_RESTARTS, _WITHIN_SECONDS = 10, 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the agent is told."""

    folder: Path
    idle: float | None
    """Stop after so long without anything to do; None is a service, which stays."""
    foreground: bool
    kill: bool = False
    """End whoever the audit finds outside."""

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> "Settings":
        """Read the command line, which only our own commands write."""
        parser = argparse.ArgumentParser(prog="milligpu-agent")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--idle", type=float)
        parser.add_argument("--foreground", action="store_true")
        parser.add_argument("--kill", action="store_true")
        return cls(**vars(parser.parse_args(arguments)))


def main(arguments: list[str]) -> int:
    """Become this folder's agent, unless there is one."""
    return run(Settings.from_arguments(arguments))


def run(settings: Settings) -> int:
    """Serve; as a service in the foreground, else in the background once clients can connect."""
    places = Places(settings.folder)
    shared = settings.idle is None and os.geteuid() == 0
    places.folder.mkdir(mode=0o755 if shared else 0o700, parents=True, exist_ok=True)
    lock = os.open(places.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if settings.foreground:
            raise Unavailable(
                f"an agent runs already: {places.folder}", hint="milligpu ps shows who needs it"
            ) from None
        return 0
    listener = listen(places.socket, 0o666 if shared else 0o600)
    if not settings.foreground:
        if os.fork():
            os._exit(0)
        _detach(places.log)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return _supervise(settings, places, listener)
    finally:
        # Before the lock goes with this process: nobody connects to a socket that no one serves.
        places.socket.unlink(missing_ok=True)


def _detach(log: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, target in enumerate((null, output, output)):
        os.dup2(target, number)
    os.close(null)
    os.close(output)


def _supervise(settings: Settings, places: Places, listener: socket.socket) -> int:
    """Keep an agent running until one says that it is no longer needed."""
    deaths: list[float] = []
    while True:
        child = os.fork()
        if not child:
            os._exit(_agent(settings, places, listener))
        signal.signal(signal.SIGTERM, lambda number, _frame, pid=child: os.kill(pid, number))
        signal.signal(signal.SIGINT, lambda _number, _frame, pid=child: os.kill(pid, signal.SIGTERM))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return 0
        now = time.monotonic()
        deaths = [*(death for death in deaths if now - death < _WITHIN_SECONDS), now]
        logging.error("the agent ended with %d", code)
        if len(deaths) > _RESTARTS:
            return 1


def _agent(settings: Settings, places: Places, listener: socket.socket) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        asyncio.run(_serve(settings, places, listener))
    except Exception:
        logging.exception("the agent failed")
        return 1
    return 0


async def _serve(settings: Settings, places: Places, listener: socket.socket) -> None:
    hardware = OwnHardware(places, os.environ)
    sessions = Sessions(places.sessions)
    arbiter = Arbiter()
    service = Service(
        lambda watch: Keeper(sessions, hardware, arbiter, name=platform.node(), now=time.time, watch=watch),
        lambda keeper: Rounds(keeper, time.monotonic, kill=settings.kill),
        lambda session: leftovers(hardware, sessions, session),
    )
    service.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_unix_server(service.serve, sock=listener, limit=LINE_MAX)
    waits: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(service.go_round()),
    }
    if settings.idle is not None:
        waits.add(asyncio.ensure_future(service.idle(settings.idle)))
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # a round that failed: let another agent begin from what is on disk
    server.close()
    arbiter.close()
    if not service.busy:
        hardware.close()


def leftovers(hardware: Hardware, sessions: Sessions, session: str) -> list[Process]:
    """A session's processes that have a GPU open: they map its pages, or the driver names them."""
    driving = {seen.pid for seen in hardware.seen()}
    return [
        process
        for process in members(session)
        if process.pid in driving or sessions.holds(memory_maps(process.pid), session)
    ]
