"""The host of one session on a GPU server: `python -m milligpu.remote.worker FD`.

A process of its own, because a session of the session service belongs to a process and ends with it. It takes the
share, and starts a native worker for each connection that the server hands to it. When it ends, however it ends,
its workers end too, and the service frees the share.
"""

import array
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from milligpu.model.errors import MilligpuError
from milligpu.model.policy import SharePolicy
from milligpu.native import library
from milligpu.sessions.client import SessionClient
from milligpu.sessions.environment import session_environment
from milligpu.sessions.protocol import RequestShare, ShareGranted, encode, refusal

_PR_SET_PDEATHSIG = 1
MESSAGE_MAX = 1 << 20
CONNECTION = b"c"
"""The message that carries a connection's descriptor."""
STAY = b"s"
"""The message that another connection is about to come."""
# A program that was announced connects after a round trip or two.
_ANNOUNCED_SECONDS = 10.0
# Programs of one session; more is a loop that starts programs.
_WORKERS_MAX = 256


class HostRequest(msgspec.Struct, frozen=True):
    """What the server tells its host first."""

    session: str
    key: str
    plain: bool
    cache: str
    command: list[str]
    count: int
    milli: int | None
    mib: int | None
    limit: int | None
    policy: SharePolicy | None
    priority: int
    wait: bool
    gpus: list[str] | None = None
    """The GPUs on which the share must be; None: whichever fit."""
    linger_s: float | None = None
    """End so long after the last program ended; None: when the server says so."""


def main(descriptor: int) -> int:
    """Hold one session until the server closes the socket."""
    _die_with_the_server()
    server = socket.socket(fileno=descriptor)
    request = msgspec.json.decode(server.recv(MESSAGE_MAX), type=HostRequest)
    granted = _take(server, request)
    if granted is None:
        return 1
    environment = {**os.environ, **session_environment(granted, os.environ), "MILLIGPU_WORKER_KEY": request.key}
    _serve(server, request, environment)
    return 0


def _take(server: socket.socket, request: HostRequest) -> ShareGranted | None:
    wanted = RequestShare(
        request.command,
        request.count,
        request.milli,
        request.mib,
        request.limit,
        request.policy,
        request.priority,
        request.wait,
        request.gpus,
    )
    try:
        for answer in SessionClient(os.environ).take(wanted, None):
            server.send(encode(answer))
            if isinstance(answer, ShareGranted):
                return answer
    except MilligpuError as error:
        server.send(encode(refusal(error)))
    return None


def _serve(server: socket.socket, request: HostRequest, environment: dict[str, str]) -> None:
    workers: list[subprocess.Popen[bytes]] = []
    patience = None if request.linger_s is None else _ANNOUNCED_SECONDS
    while _wait(server, workers, patience):
        message, connections = _receive(server)
        if not message:
            return
        workers = [each for each in workers if each.poll() is None]
        for connection in connections:
            if len(workers) < _WORKERS_MAX:
                workers.append(_start(connection, request, environment))
            os.close(connection)
        if request.linger_s is not None:
            patience = _ANNOUNCED_SECONDS if message == STAY else request.linger_s


def _wait(server: socket.socket, workers: list[subprocess.Popen[bytes]], patience: float | None) -> bool:
    """Wait for the server's next message; False if no program runs and none came for `patience` seconds."""
    while patience is not None:
        running = [os.pidfd_open(each.pid) for each in workers if each.poll() is None]
        try:
            ready = select.select([server, *running], [], [], None if running else patience)[0]
        finally:
            for handle in running:
                os.close(handle)
        if not ready:
            return False
        if server in ready:
            break
    return True


def _receive(server: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message and the descriptors that came with it; empty when the server closed the socket."""
    descriptors = array.array("i")
    message, ancillary, _flags, _address = server.recvmsg(64, socket.CMSG_LEN(descriptors.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def _start(connection: int, request: HostRequest, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [str(library("milligpu-worker")), "--fd", str(connection), "--session", request.session]
    command += ["--parent", str(os.getpid()), "--cache", request.cache, *(["--plain"] if request.plain else [])]
    return subprocess.Popen(command, env=environment, pass_fds=[connection], stdin=subprocess.DEVNULL, cwd="/")


def _die_with_the_server() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def host_command(descriptor: int) -> list[str]:
    return [sys.executable, "-m", "milligpu.remote.worker", str(descriptor)]


def trim_cache(folder: Path, most: int) -> None:
    """Delete the modules that were not used for the longest time, until the rest has at most `most` bytes."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a worker renamed it meanwhile
            about = path.stat()
            found.append((about.st_atime, about.st_size, path))
    total = 0
    for _used, size, path in sorted(found, reverse=True):
        total += size
        if total > most:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
