"""The GPU server: answers clients over the network, and gives each session a process that holds its share.

The server is the only authority over its GPUs: there is no state elsewhere to lose. A session lives exactly as
long as its client's connection; its share is held by the machine's own session service, like that of any command
here.
"""

import asyncio
import hmac
import logging
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from milligpu.logs import configure_logs
from milligpu.model.errors import BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.model.units import WHOLE, Milli, show_milli
from milligpu.remote import protocol
from milligpu.remote.pool import PoolAuthority
from milligpu.remote.protocol import (
    CONTROL_MAGIC,
    LINE_MAX,
    MAGIC_SIZE,
    SESSION_SIZE,
    SILENCE_SECONDS,
    WORKER_MAGIC,
    ClientBeat,
    GpuList,
    ListGpus,
    OpenSession,
    ServerBeat,
    SessionOpened,
    SessionWaits,
    encode_line,
)
from milligpu.remote.tokens import PoolTokenClaims, TokenRefused, verify_token
from milligpu.remote.worker import CONNECTION, MESSAGE_MAX, HostRequest, host_command, trim_cache
from milligpu.sessions.client import SessionClient
from milligpu.sessions.protocol import (
    ReadStatus,
    RequestRefused,
    ShareGranted,
    ShareQueued,
    StatusRead,
    decode_answer,
    refusal,
)

log = logging.getLogger(__name__)

# A client sends its first bytes at once; one that does not is no client.
_HELLO_SECONDS = 10.0
# Connections that have not proved anything yet. Each costs a descriptor and a few KiB.
_STRANGERS_MAX = 256
_BACKLOG = 512
# Modules that clients sent, so that they need not send them again.
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str
    port: int
    state: Path
    """Where modules of clients are kept."""
    plain: bool = False
    """Without TLS, for networks that are trusted or encrypted otherwise."""


@dataclass(slots=True)
class RemoteSession:
    """One client's session."""

    id: str
    claims: PoolTokenClaims
    milli: Milli
    """The compute that counts against the token's quota."""
    key: str
    host: subprocess.Popen[bytes]
    link: socket.socket
    """To the host, which takes connections over it."""
    peer: str
    granted: bool = False


@dataclass(slots=True)
class RemoteServer:
    """Serves clients until it is stopped."""

    settings: ServerSettings
    key: ec.EllipticCurvePublicKey
    context: ssl.SSLContext | None
    now: Callable[[], float] = time.time
    sessions: dict[str, RemoteSession] = field(default_factory=dict[str, RemoteSession])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _strangers: int = 0

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; then all sessions end."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                connection, address = await loop.sock_accept(listener)
                if self._strangers >= _STRANGERS_MAX:
                    connection.close()
                    continue
                task = loop.create_task(self._admit(connection, f"{address[0]}"))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in list(self._tasks):
                task.cancel()
            for session in list(self.sessions.values()):
                self._end(session)

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Read what kind of connection it is, byte by byte: what follows belongs to TLS."""
        self._strangers += 1
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                magic = await _exactly(connection, MAGIC_SIZE)
                if magic == WORKER_MAGIC:
                    name = await _exactly(connection, SESSION_SIZE)
                    self._hand_over(connection, name.rstrip(b"\0").decode("ascii", "replace"))
                    return
                if magic != CONTROL_MAGIC:
                    return
                reader, writer = await self._secure(connection)
        except (OSError, EOFError, TimeoutError):
            connection.close()
            return
        finally:
            self._strangers -= 1
        try:
            await self._talk(reader, writer, peer)
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, TimeoutError):
            pass  # it is gone, or sent something that is no message
        except Exception:
            log.exception("client %s: an unexpected error ended its connection", peer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _secure(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(LINE_MAX, loop)
        streams = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: streams, connection, ssl=self.context)
        return reader, asyncio.StreamWriter(transport, streams, reader, loop)

    def _hand_over(self, connection: socket.socket, name: str) -> None:
        """Give a program's connection to its session's host; only who has the key gets further there."""
        session = next((each for each in self.sessions.values() if hmac.compare_digest(each.id, name)), None)
        if session is not None and session.granted:
            connection.setblocking(True)
            with suppress(OSError):
                socket.send_fds(session.link, [CONNECTION], [connection.fileno()])
        connection.close()

    # -- one client --------------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        async with asyncio.timeout(_HELLO_SECONDS):
            line = await reader.readline()
        try:
            request = protocol.decode_client(line)
            if isinstance(request, ClientBeat):
                return
            if request.v > protocol.VERSION:
                raise BadRequest(
                    "v", request.v, f"at most {protocol.VERSION}: this server is older than its client"
                )
            claims = verify_token(request.token, self.key, self.now())
            match request:
                case ListGpus():
                    writer.write(encode_line(await self._list()))
                case OpenSession():
                    await self._open(request, claims, reader, writer, peer)
        except MilligpuError as error:
            if isinstance(error, TokenRefused):
                log.warning("client %s: refused: %s", peer, error.message)
            writer.write(encode_line(refusal(error)))
        await writer.drain()

    async def _list(self) -> GpuList:
        answer = await asyncio.to_thread(SessionClient(os.environ).ask, ReadStatus())
        assert isinstance(answer, StatusRead)
        return GpuList(answer.status.machine, answer.status.gpus)

    async def _open(
        self,
        request: OpenSession,
        claims: PoolTokenClaims,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
    ) -> None:
        session = self._start(request, claims, peer)
        try:
            async with asyncio.timeout(max(0.0, claims.expires - self.now())):
                async with asyncio.TaskGroup() as group:
                    answers = group.create_task(self._answer(session, writer))
                    await _follow(reader, writer)
                    answers.cancel()
        except* (TimeoutError, EOFError, OSError):
            pass  # the token expired, or the client or the host is gone
        finally:
            self._end(session)

    def _start(self, request: OpenSession, claims: PoolTokenClaims, peer: str) -> RemoteSession:
        milli = self._check_quota(request, claims)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        key = secrets.token_hex(32)
        name = secrets.token_hex(8)
        with other:
            host = subprocess.Popen(
                host_command(other.fileno()), pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, cwd="/"
            )
        session = RemoteSession(name, claims, milli, key, host, own, peer)
        self.sessions[name] = session
        own.send(
            msgspec.json.encode(
                HostRequest(
                    name,
                    key,
                    self.settings.plain,
                    str(self._cache()),
                    [f"{claims.name}@{peer}:", *request.command],
                    request.count,
                    request.milli,
                    request.mib,
                    request.limit,
                    request.policy,
                    request.priority,
                    request.wait,
                )
            )
        )
        own.setblocking(False)
        return session

    def _check_quota(self, request: OpenSession, claims: PoolTokenClaims) -> Milli:
        if request.priority > claims.priority_max:
            raise BadRequest("--priority", request.priority, f"at most {claims.priority_max}, as the token says")
        if claims.quota is None:
            return Milli(0)
        if request.milli is None and request.mib is not None:
            raise BadRequest("-p", None, "a fraction, because the token has a quota of compute")
        milli = Milli((WHOLE if request.milli is None else request.milli) * request.count)
        held = sum(each.milli for each in self.sessions.values() if each.claims.name == claims.name)
        if milli + held > claims.quota:
            raise NoCapacity(
                f"{claims.name} holds {show_milli(Milli(held))} GPUs of a quota of {show_milli(claims.quota)}",
                hint="end a session, or ask for a smaller share",
            )
        return milli

    async def _answer(self, session: RemoteSession, writer: asyncio.StreamWriter) -> None:
        """Tell the client what the host says: why it waits, that it has its share, or that it gets none."""
        loop = asyncio.get_running_loop()
        while line := await loop.sock_recv(session.link, MESSAGE_MAX):
            match decode_answer(line):
                case ShareQueued() as queued:
                    writer.write(encode_line(SessionWaits(queued.line)))
                case ShareGranted():
                    session.granted = True
                    log.info("session %s: opened for %s at %s", session.id, session.claims.name, session.peer)
                    writer.write(encode_line(SessionOpened(session.id, session.key)))
                case RequestRefused() as refused:
                    writer.write(encode_line(refused))
                    await writer.drain()
                    raise EOFError
                case _:
                    pass
        if not session.granted:
            writer.write(encode_line(refusal(Unavailable("the GPU server could not start the session"))))
            await writer.drain()
        raise EOFError

    def _end(self, session: RemoteSession) -> None:
        """End the host; its workers and its share go with it."""
        if self.sessions.pop(session.id, None) is None:
            return
        session.link.close()
        session.host.send_signal(signal.SIGKILL)
        session.host.wait()
        if session.granted:
            log.info("session %s: closed", session.id)
        trim_cache(self._cache(), _CACHE_BYTES)

    def _cache(self) -> Path:
        folder = self.settings.state / "modules"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


async def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


async def _follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the client's beats; raises when it is gone or silent for too long."""
    while True:
        async with asyncio.timeout(SILENCE_SECONDS):
            line = await reader.readline()
        if not line:
            raise EOFError
        if not isinstance(protocol.decode_client(line), ClientBeat):
            raise BadRequest("request", "a second one", "sent on a connection of its own")
        writer.write(encode_line(ServerBeat()))
        await writer.drain()


def listen(settings: ServerSettings) -> socket.socket:
    """Open the port."""
    try:
        listener = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def run(settings: ServerSettings, authority: PoolAuthority) -> int:
    """Serve until SIGTERM or SIGINT."""
    configure_logs()
    listener = listen(settings)
    key = authority.key.public_key()
    context = None if settings.plain else authority.server_context()
    log.info(
        "serving on %s:%d%s", settings.host, listener.getsockname()[1], " WITHOUT TLS" if settings.plain else ""
    )
    asyncio.run(_until_stopped(RemoteServer(settings, key, context), listener))
    return 0


async def _until_stopped(server: RemoteServer, listener: socket.socket) -> None:
    task = asyncio.ensure_future(server.serve(listener))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
