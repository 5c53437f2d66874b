"""The session service's process: `python -m milligpu.sessions FOLDER`, started by the first command or by an admin.

The process binds the socket before it goes into the background, so its starter can connect when it returns. A small
parent holds the socket and the lock; the service is its child. A service that is killed is restarted at once, and
clients that connect in the meantime wait.
"""

import argparse
import asyncio
import fcntl
import logging
import os
import platform
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milligpu.logs import configure_logs
from milligpu.model.errors import Unavailable
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.sessions.gpu_source import GpuSource, LocalGpuSource
from milligpu.sessions.manager import SessionManager
from milligpu.sessions.members import members
from milligpu.sessions.monitor import SessionMonitor
from milligpu.sessions.paths import ServicePaths, listen
from milligpu.sessions.protocol import LINE_MAX
from milligpu.sessions.service import SessionService
from milligpu.sessions.store import SessionStore
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.processes import ProcessId, memory_maps
from milligpu.tenancy.tenants import Tenants

log = logging.getLogger(__name__)

# A service that dies more often than this has a fault that a restart does not cure.
_RESTARTS, _WITHIN_SECONDS = 10, 10.0


@dataclass(frozen=True, slots=True)
class SessionServiceSettings:
    folder: Path
    idle: float | None
    """Stop after this many idle seconds; None: run until stopped."""
    foreground: bool
    kill: bool = False
    """End processes that exceed or bypass their session's share."""
    share_policy: Callable[[int], SharePolicy] = lambda _index: DEFAULT_POLICY
    """The share policy of each GPU, by its index."""

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> "SessionServiceSettings":
        """Read the command line, which only milligpu itself writes."""
        parser = argparse.ArgumentParser(prog="milligpu-sessions")
        parser.add_argument("folder", type=Path)
        parser.add_argument("--idle", type=float)
        parser.add_argument("--foreground", action="store_true")
        parser.add_argument("--kill", action="store_true")
        return cls(**vars(parser.parse_args(arguments)))


def main(arguments: list[str]) -> int:
    """Serve, unless a service for this directory runs already."""
    return run(SessionServiceSettings.from_arguments(arguments))


def run(settings: SessionServiceSettings) -> int:
    """Serve in the foreground, or in the background once clients can connect."""
    paths = ServicePaths(settings.folder)
    shared = settings.idle is None and os.geteuid() == 0
    paths.folder.mkdir(mode=0o755 if shared else 0o700, parents=True, exist_ok=True)
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if settings.foreground:
            raise Unavailable(
                f"a session service runs already: {paths.folder}", hint="milligpu ps lists its sessions"
            ) from None
        return 0
    listener = listen(paths.socket, 0o666 if shared else 0o600)
    if not settings.foreground:
        if os.fork():
            os._exit(0)
        _detach(paths.log)
    configure_logs()
    try:
        return _supervise(settings, paths, listener)
    finally:
        # While this process still has the lock, so that no client connects to a socket without a service.
        paths.socket.unlink(missing_ok=True)


def _detach(log: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, target in enumerate((null, output, output)):
        os.dup2(target, number)
    os.close(null)
    os.close(output)


def _supervise(settings: SessionServiceSettings, paths: ServicePaths, listener: socket.socket) -> int:
    """Restart the service until it ends by itself."""
    deaths: list[float] = []
    while True:
        child = os.fork()
        if not child:
            os._exit(_service(settings, paths, listener))
        signal.signal(signal.SIGTERM, lambda number, _frame, pid=child: os.kill(pid, number))
        signal.signal(signal.SIGINT, lambda _number, _frame, pid=child: os.kill(pid, signal.SIGTERM))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return 0
        now = time.monotonic()
        deaths = [*(death for death in deaths if now - death < _WITHIN_SECONDS), now]
        log.error("the session service ended with code %d", code)
        if len(deaths) > _RESTARTS:
            return 1


def _service(settings: SessionServiceSettings, paths: ServicePaths, listener: socket.socket) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        asyncio.run(_serve(settings, paths, listener))
    except Exception:
        log.exception("the session service failed")
        return 1
    return 0


async def _serve(settings: SessionServiceSettings, paths: ServicePaths, listener: socket.socket) -> None:
    source = LocalGpuSource(paths, os.environ, settings.share_policy)
    store = SessionStore(paths.sessions)
    arbiter = Arbiter()
    tenants = Tenants(arbiter)
    service = SessionService(
        lambda watch: SessionManager(store, source, tenants, name=platform.node(), now=time.time, watch=watch),
        lambda manager: SessionMonitor(manager, time.monotonic, kill=settings.kill),
        lambda session: leftovers(source, store, session),
    )
    service.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_unix_server(service.serve, sock=listener, limit=LINE_MAX)
    waits: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(service.monitor()),
    }
    if settings.idle is not None:
        waits.add(asyncio.ensure_future(service.wait_idle(settings.idle)))
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # after an error the next service starts from the state on disk
    server.close()
    arbiter.close()
    if not service.busy:
        source.close()


def leftovers(source: GpuSource, store: SessionStore, session: str) -> list[ProcessId]:
    """List a session's processes that have a GPU open: they map its pages, or the driver lists them."""
    on_gpu = {process.pid for process in source.processes()}
    return [
        process
        for process in members(session)
        if process.pid in on_gpu or store.uses_pages(memory_maps(process.pid), session)
    ]
