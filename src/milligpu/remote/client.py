"""The client's side: opens a session at one of several servers, and keeps it open while a command runs."""

import os
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from milligpu.model.errors import MilligpuError, NoCapacity, Unavailable
from milligpu.native import library
from milligpu.remote.protocol import (
    BEAT_SECONDS,
    CONTROL_MAGIC,
    LINE_MAX,
    SILENCE_SECONDS,
    ClientBeat,
    GpuList,
    ListGpus,
    OpenSession,
    RemoteRequest,
    ServerMessage,
    SessionOpened,
    SessionWaits,
    decode_server,
    encode_line,
)
from milligpu.remote.token_file import PoolAccess
from milligpu.sessions.protocol import RequestRefused, to_error

_CONNECT_SECONDS = 10.0
_PART = 1 << 16
_STDERR = 2
# A server that has to start a software GPU, or many sessions at once.
_ANSWER_SECONDS = 120.0


class ServerConnection:
    """One connection to one server, over which one request goes."""

    def __init__(self, server: str, access: PoolAccess, *, plain: bool) -> None:
        """`plain`: without TLS, which the server must be told as well."""
        self.server = server
        host, _, port = server.rpartition(":")
        try:
            raw = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.sendall(CONTROL_MAGIC)
            self._socket = raw if plain else _context(access.authority).wrap_socket(raw)
        except ssl.SSLError as error:
            raise Unavailable(
                f"GPU server {server}: no trusted connection: {error.reason or error}",
                hint="is the token file of this server's pool, and does the server use TLS?",
            ) from None
        except OSError as error:
            raise Unavailable(f"GPU server {server}: {error.strerror or error}") from None
        self._received = bytearray()

    def send(self, request: RemoteRequest) -> None:
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.sendall(encode_line(request))

    def receive(self, seconds: float) -> ServerMessage:
        """Return the next answer, or raise TimeoutError; a refusal is raised as what it refuses."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            if not self._has_bytes(deadline - time.monotonic()):
                raise TimeoutError
            try:
                self._socket.settimeout(0)
                part = self._socket.recv(_PART)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # what came was for TLS itself
            except OSError as error:
                raise Unavailable(f"GPU server {self.server}: {error.strerror or error}") from None
            if not part or len(self._received) > LINE_MAX:
                raise Unavailable(f"GPU server {self.server}: closed the connection")
            self._received += part
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        answer = decode_server(line)
        if isinstance(answer, RequestRefused):
            raise to_error(answer)
        return answer

    def _has_bytes(self, seconds: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], max(0.0, seconds))[0])

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close it, also while another thread waits for an answer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _context(authority: str) -> ssl.SSLContext:
    """Trust the servers of this pool, by whatever address they are reached, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=authority)
    except ssl.SSLError:
        raise Unavailable("the token file has no valid authority", hint="ask the admin for a new one") from None
    return context


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that was granted, with the connection on which it depends."""

    connection: ServerConnection
    opened: SessionOpened
    plain: bool

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """The variables with which a program's CUDA calls go to the server."""
        folder = str(library("remote/libcuda.so.1").parent)
        path = [part for part in env.get("LD_LIBRARY_PATH", "").split(":") if part and part != folder]
        added = {
            "LD_LIBRARY_PATH": ":".join([folder, *path]),
            "MILLIGPU_REMOTE": self.connection.server,
            "MILLIGPU_REMOTE_SESSION": self.opened.session,
            "MILLIGPU_REMOTE_KEY": self.opened.key,
        }
        # Set by a local session or a container, they name GPUs of this machine.
        hidden = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
        kept = {name: value for name, value in env.items() if name not in hidden}
        return {**kept, **added, **({"MILLIGPU_REMOTE_PLAIN": "1"} if self.plain else {})}


class SessionRace:
    """Asks several servers at once, and takes the first that grants the share."""

    def __init__(self, access: PoolAccess, *, plain: bool) -> None:
        self._access = access
        self._plain = plain
        self._answers: queue.SimpleQueue[tuple[ServerConnection | None, ServerMessage | MilligpuError]]
        self._answers = queue.SimpleQueue()
        self._connections: list[ServerConnection] = []
        self._lock = threading.Lock()
        self._over = False

    def run(self, request: OpenSession, timeout: float | None, waits: Callable[[str], None]) -> OpenedSession:
        """Return the session; `waits` is told what each server waits for."""
        threads = [
            threading.Thread(target=self._ask, args=(server, request), daemon=True)
            for server in self._access.servers
        ]
        for thread in threads:
            thread.start()
        winner: ServerConnection | None = None
        try:
            for connection, answer in self._until(timeout, len(threads)):
                if isinstance(answer, SessionWaits) and connection is not None:
                    waits(f"{connection.server}: {answer.message}")
                elif isinstance(answer, SessionOpened) and connection is not None:
                    winner = connection
                    return OpenedSession(connection, answer, self._plain)
        finally:
            self._end_others(winner)
            for thread in threads:
                thread.join(_CONNECT_SECONDS)
        raise Unavailable("no GPU server answered")

    def _until(
        self, timeout: float | None, servers: int
    ) -> Iterator[tuple[ServerConnection | None, ServerMessage | MilligpuError]]:
        """Yield answers until all servers refused; then raise the refusal that says most."""
        deadline = None if timeout is None else time.monotonic() + timeout
        errors: list[MilligpuError] = []
        while len(errors) < servers:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                connection, answer = self._answers.get(timeout=left)
            except queue.Empty:
                raise NoCapacity(f"no GPU server had the share free within {timeout:g} s") from None
            if isinstance(answer, MilligpuError):
                errors.append(answer)
            yield connection, answer
        raise min(errors, key=lambda each: isinstance(each, Unavailable))

    def _ask(self, server: str, request: OpenSession) -> None:
        connection = None
        try:
            connection = ServerConnection(server, self._access, plain=self._plain)
            with self._lock:
                self._connections.append(connection)
                if self._over:
                    connection.close()
            connection.send(request)
            self._wait(connection)
        except MilligpuError as error:
            self._answers.put((connection, error))
        except OSError as error:
            self._answers.put((connection, Unavailable(f"GPU server {server}: {error.strerror or error}")))

    def _wait(self, connection: ServerConnection) -> None:
        heard = time.monotonic()
        while True:
            try:
                answer = connection.receive(BEAT_SECONDS)
            except TimeoutError:
                if time.monotonic() - heard > SILENCE_SECONDS:
                    raise Unavailable(f"GPU server {connection.server}: does not answer") from None
                connection.send(ClientBeat())
                continue
            heard = time.monotonic()
            if isinstance(answer, SessionOpened | SessionWaits):
                self._answers.put((connection, answer))
            if isinstance(answer, SessionOpened):
                return

    def _end_others(self, winner: ServerConnection | None) -> None:
        with self._lock:
            self._over = True
            for each in self._connections:
                if each is not winner:
                    each.close()


def list_gpus(access: PoolAccess, *, plain: bool) -> list[GpuList | MilligpuError]:
    """Ask every server for its GPUs; a server that does not answer is told apart."""
    found: list[GpuList | MilligpuError] = []
    for server in access.servers:
        try:
            connection = ServerConnection(server, access, plain=plain)
            connection.send(ListGpus(1, access.token))
            answer = connection.receive(_ANSWER_SECONDS)
            connection.close()
            assert isinstance(answer, GpuList)
            found.append(answer)
        except TimeoutError:
            found.append(Unavailable(f"GPU server {server}: does not answer"))
        except MilligpuError as error:
            found.append(error)
    return found


def keep_open(session: OpenedSession) -> None:
    """Leave a process behind that keeps the session open until this process, or what replaces it, ends.

    It is no child of this process: a program that waits for its children must not meet one that it did not start.
    """
    owner = os.pidfd_open(os.getpid())
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        os.close(owner)
        return
    if os.fork():
        os._exit(0)
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        _close_all_but({session.connection.fileno(), owner})
        _keep(session.connection, owner)
    finally:
        os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    """Close what the command's pipes and files would otherwise stay open by."""
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        if number > _STDERR and number not in kept:
            with suppress(OSError):
                os.close(number)


def _keep(connection: ServerConnection, owner: int) -> None:
    """Beat until the command ends or the server is gone."""
    heard = beaten = time.monotonic()
    while time.monotonic() - heard < SILENCE_SECONDS:
        ready, _, _ = select.select([owner, connection.fileno()], [], [], BEAT_SECONDS)
        if owner in ready:
            break
        if ready:
            with suppress(TimeoutError):
                connection.receive(0)
            heard = time.monotonic()
        if time.monotonic() - beaten >= BEAT_SECONDS:
            connection.send(ClientBeat())
            beaten = time.monotonic()
    connection.close()
