"""The GPU server: answers clients over the network, and gives each session a process that holds its share.

The server is the only authority over its GPUs: there is no state elsewhere to lose. A session lives exactly as
long as its client's connection; its share is held by the machine's own session service, like that of any command
here.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from milligpu.kube.api import ApiClient
from milligpu.kube.config import find_cluster
from milligpu.logs import configure_logs
from milligpu.model.errors import BadRequest, MilligpuError, NoCapacity, Unavailable
from milligpu.remote import protocol
from milligpu.remote.cluster_report import ClusterReport, ServerIdentity
from milligpu.remote.idle import IdleWatch
from milligpu.remote.pod_grants import PodGrants
from milligpu.remote.pod_sessions import PodSessions
from milligpu.remote.pool import PoolAuthority
from milligpu.remote.protocol import (
    CONTROL_MAGIC,
    LINE_MAX,
    MAGIC_SIZE,
    SESSION_SIZE,
    SILENCE_SECONDS,
    WORKER_MAGIC,
    AttachPod,
    ClientBeat,
    DrainServer,
    ExchangeRevocations,
    GpuList,
    ListGpus,
    OpenSession,
    ReadHealth,
    ReadServerStatus,
    RevocationsHeld,
    ServerBeat,
    ServerDrained,
    ServerStatus,
    SessionOpened,
    SessionWaits,
    encode_line,
)
from milligpu.remote.report import report_health
from milligpu.remote.revocation_store import RevocationStore, exchange_with
from milligpu.remote.server_status import machine_status, only_sessions, session_use
from milligpu.remote.session_hosts import RemoteSession, SessionHosts
from milligpu.remote.token_file import PoolAccess
from milligpu.remote.token_register import REVOCATIONS_FILE
from milligpu.remote.tokens import PoolTokenClaims, TokenRefused, verify_token
from milligpu.remote.worker import MESSAGE_MAX
from milligpu.sessions.protocol import (
    RequestRefused,
    ShareGranted,
    ShareQueued,
    decode_answer,
    refusal,
)

log = logging.getLogger(__name__)

# A client sends its first bytes at once; one that does not is no client.
_HELLO_SECONDS = 10.0
# Connections that have not proved anything yet. Each costs a descriptor and a few KiB.
_STRANGERS_MAX = 256
_BACKLOG = 512
# How often sessions are looked at is a part of the idle limit, and at least once a minute.
_LOOKS_PER_LIMIT = 10
_LOOK_MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster that the server belongs to."""

    name: str
    """Of the server's GpuServer object."""
    address: str
    """Where pods reach the server."""
    kubeconfig: str | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str
    port: int
    state: Path
    """Where modules of clients, revoked tokens and the drained state are kept."""
    pool: Path
    """The directory of the pool's authority."""
    plain: bool = False
    """Without TLS, for networks that are trusted or encrypted otherwise."""
    peers: tuple[str, ...] = ()
    """Other servers of the pool, with which revoked tokens are exchanged."""
    exchange_s: float = 60.0
    idle_limit_s: float | None = None
    """How long a session may leave its GPU unused; None: for ever."""
    cluster: ClusterSettings | None = None
    """The cluster whose pods get shares here; None: only clients with tokens of the pool do."""


class RemoteServer:
    """Serves clients until it is stopped."""

    def __init__(
        self, settings: ServerSettings, authority: PoolAuthority, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._key = authority.key.public_key()
        self._access = PoolAccess((), authority.pem, "")
        self._context = None if settings.plain else authority.server_context()
        self._now = now
        self._hosts = SessionHosts(settings.state, now, plain=settings.plain)
        self._revoked = RevocationStore(settings.state / REVOCATIONS_FILE, self._key)
        self._pods: PodSessions | None = None
        """The sessions of a cluster's pods, while the server knows its cluster."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = 0
        # One report at a time: each starts a process that opens the driver.
        self._reporting = asyncio.Lock()

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; then all sessions end."""
        loop = asyncio.get_running_loop()
        self._spawn(self._exchange())
        if self._settings.cluster is not None:
            self._spawn(self._serve_cluster(self._settings.cluster))
        if self._settings.idle_limit_s is not None:
            self._spawn(self._end_idle(self._settings.idle_limit_s))
        try:
            while True:
                connection, address = await loop.sock_accept(listener)
                if self._strangers >= _STRANGERS_MAX:
                    connection.close()
                    continue
                self._spawn(self._admit(connection, f"{address[0]}"))
        finally:
            for task in list(self._tasks):
                task.cancel()
            for session in list(self._hosts.sessions.values()):
                self._hosts.end(session)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _admit(self, connection: socket.socket, peer: str) -> None:
        """Read what kind of connection it is, byte by byte: what follows belongs to TLS."""
        self._strangers += 1
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                magic = await _exactly(connection, MAGIC_SIZE)
                if magic == WORKER_MAGIC:
                    name = await _exactly(connection, SESSION_SIZE)
                    self._hosts.hand_over(connection, name.rstrip(b"\0").decode("ascii", "replace"))
                    return
                if magic != CONTROL_MAGIC:
                    connection.close()
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
        transport, _ = await loop.connect_accepted_socket(lambda: streams, connection, ssl=self._context)
        return reader, asyncio.StreamWriter(transport, streams, reader, loop)

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
            if isinstance(request, ExchangeRevocations):
                writer.write(encode_line(self._take_revocations(request)))
            elif isinstance(request, AttachPod):
                writer.write(encode_line(await self._attach(request, peer)))
            else:
                claims = self._check_token(request.token)
                if isinstance(request, OpenSession):
                    await self._open(request, claims, reader, writer, peer)
                elif isinstance(request, ReadHealth):
                    async with self._reporting:
                        await report_health(request, writer, self._now)
                    await _follow(reader, writer)
                else:
                    writer.write(encode_line(await self._answer_once(request, claims)))
        except MilligpuError as error:
            if isinstance(error, TokenRefused):
                log.warning("client %s: refused: %s", peer, error.message)
            writer.write(encode_line(refusal(error)))
        await writer.drain()

    def _check_token(self, token: str) -> PoolTokenClaims:
        claims = verify_token(token, self._key, self._now())
        if claims.id in self._revoked.newest.revoked:
            raise TokenRefused("a token that was not revoked: ask the pool's admin for a new one")
        return claims

    async def _answer_once(
        self, request: ListGpus | ReadServerStatus | DrainServer, claims: PoolTokenClaims
    ) -> GpuList | ServerStatus | ServerDrained:
        match request:
            case ListGpus():
                status = await machine_status()
                return GpuList(status.machine, status.gpus, self._draining, status.driver, status.cuda)
            case ReadServerStatus():
                status = await machine_status()
                sessions = [
                    each.listed()
                    for each in self._hosts.sessions.values()
                    if claims.admin or each.claims.name == claims.name
                ]
                shown = status if claims.admin else only_sessions(status, {each.session for each in sessions})
                return ServerStatus(shown, sessions, self._draining)
            case DrainServer():
                if not claims.admin:
                    raise TokenRefused("an admin's: run this command where the pool's authority is")
                return self._drain(draining=request.drain)

    # -- draining ----------------------------------------------------------------------------------------------

    @property
    def _drained(self) -> Path:
        return self._settings.state / "draining"

    @property
    def _draining(self) -> bool:
        return self._drained.exists()

    def _drain(self, *, draining: bool) -> ServerDrained:
        """Open no further sessions, also after a restart; those that wait are refused, the others go on."""
        self._settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if draining:
            self._drained.touch()
            waiting = [each for each in self._hosts.sessions.values() if not each.granted]
            self._hosts.stop(waiting, _DRAINED)
        else:
            self._drained.unlink(missing_ok=True)
        log.info("draining" if draining else "no longer draining")
        return ServerDrained(draining, sum(bool(each.granted) for each in self._hosts.sessions.values()))

    # -- revoked tokens ----------------------------------------------------------------------------------------

    def _take_revocations(self, request: ExchangeRevocations) -> RevocationsHeld:
        ended = self._end_revoked() if self._revoked.take(request.signed) else 0
        return RevocationsHeld(self._revoked.signed, ended)

    def _end_revoked(self) -> int:
        revoked = self._revoked.newest.revoked
        return self._hosts.stop(
            (each for each in self._hosts.sessions.values() if each.claims.id in revoked), "its token was revoked"
        )

    async def _exchange(self) -> None:
        """Learn of revoked tokens from the pool's directory and from other servers, again and again."""
        own = {f"{self._settings.host}:{self._settings.port}"}
        while True:
            newer = self._revoked.read(self._settings.pool / REVOCATIONS_FILE)
            peers = dict.fromkeys((*self._settings.peers, *self._revoked.newest.servers))
            asked = [peer for peer in peers if peer not in own]
            found = await asyncio.to_thread(
                exchange_with, asked, self._access, self._revoked.signed, plain=self._settings.plain
            )
            for signed in found:
                with suppress(MilligpuError):  # the pool did not sign it
                    newer |= self._revoked.take(signed)
            if newer:
                self._end_revoked()
            await asyncio.sleep(self._settings.exchange_s)

    # -- idle sessions -----------------------------------------------------------------------------------------

    async def _end_idle(self, limit: float) -> None:
        watch = IdleWatch(limit)
        while True:
            await asyncio.sleep(min(_LOOK_MAX_SECONDS, limit / _LOOKS_PER_LIMIT))
            if not self._hosts.sessions:
                continue
            try:
                status = await machine_status()
            except MilligpuError as error:
                log.warning("could not read what sessions use: %s", error.message)
                continue
            held = {each.granted: each for each in self._hosts.sessions.values() if each.granted}
            uses = {name: session_use(status, name, each.host.pid) for name, each in held.items()}
            idle = watch.idle(uses, time.monotonic())
            self._hosts.stop((held[name] for name in idle), f"it was idle for {limit:g} s")

    # -- pods of a cluster -------------------------------------------------------------------------------------

    async def _attach(self, request: AttachPod, peer: str) -> SessionOpened:
        if self._pods is None:
            raise TokenRefused("a token of the pool: this server serves no pods (milligpu server --cluster)")
        return await self._pods.attach(request, peer)

    async def _serve_cluster(self, cluster: ClusterSettings) -> None:
        """Report to the cluster, and serve its pods, until cancelled."""
        async with ApiClient(find_cluster(cluster.kubeconfig)) as api:
            self._pods = pods = PodSessions(PodGrants(api, cluster.name), self._hosts, self._now)
            identity = ServerIdentity(cluster.name, cluster.address, self._access.authority)
            await ClusterReport(api, identity, lambda: pods.granted, lambda: self._draining).run()

    # -- one session -------------------------------------------------------------------------------------------

    async def _open(
        self,
        request: OpenSession,
        claims: PoolTokenClaims,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
    ) -> None:
        if self._draining:
            raise NoCapacity(f"GPU server {self._settings.host}:{self._settings.port}: {_DRAINED}")
        if request.gpus is not None and len(request.gpus) > protocol.GPUS_NAMED_MAX:
            raise BadRequest("gpus", len(request.gpus), f"at most {protocol.GPUS_NAMED_MAX}")
        session = self._hosts.start(request, claims, peer, gpus=request.gpus)
        try:
            async with asyncio.timeout(max(0.0, claims.expires - self._now())):
                async with asyncio.TaskGroup() as group:
                    answers = group.create_task(self._answer(session, writer))
                    stopped = group.create_task(_until_stopped(session))
                    await _follow(reader, writer)
                    answers.cancel()
                    stopped.cancel()
        except* TimeoutError:
            session.stop("its token expired, or its client is silent")
        except* (EOFError, OSError):
            pass  # the client or the host is gone, or the session was stopped
        finally:
            self._hosts.end(session)
        if session.why and not session.granted:
            raise NoCapacity(f"the GPU server ended the session: {session.why}")

    async def _answer(self, session: RemoteSession, writer: asyncio.StreamWriter) -> None:
        """Tell the client what the host says: why it waits, that it has its share, or that it gets none."""
        loop = asyncio.get_running_loop()
        while line := await loop.sock_recv(session.link, MESSAGE_MAX):
            match decode_answer(line):
                case ShareQueued() as queued:
                    writer.write(encode_line(SessionWaits(queued.line)))
                case ShareGranted() as granted:
                    session.granted = granted.session
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


_DRAINED = "it is being drained"


async def _until_stopped(session: RemoteSession) -> None:
    await session.stopped.wait()
    raise EOFError


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
    log.info(
        "serving on %s:%d%s", settings.host, listener.getsockname()[1], " WITHOUT TLS" if settings.plain else ""
    )
    asyncio.run(_until_signal(RemoteServer(settings, authority), listener))
    return 0


async def _until_signal(server: RemoteServer, listener: socket.socket) -> None:
    task = asyncio.ensure_future(server.serve(listener))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
