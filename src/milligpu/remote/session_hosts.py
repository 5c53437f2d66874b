"""The sessions of a GPU server: a process for each, which holds its share and starts its workers."""

import asyncio
import hmac
import logging
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.units import WHOLE, Milli, show_milli
from milligpu.remote.protocol import OpenSession, PoolSession
from milligpu.remote.tokens import PoolTokenClaims
from milligpu.remote.worker import CONNECTION, STAY, HostRequest, host_command, trim_cache

log = logging.getLogger(__name__)

# Modules that clients sent, so that they need not send them again.
_CACHE_BYTES = 1 << 30


@dataclass(slots=True, eq=False)
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
    command: tuple[str, ...]
    since: float
    granted: str = ""
    """Its name in the machine's own session service, once it has its share."""
    why: str = ""
    """Why the server ended it; empty if the client did."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.stopped.set()

    def listed(self) -> PoolSession:
        return PoolSession(self.id, self.claims.name, self.peer, list(self.command), self.since, self.granted)


class SessionHosts:
    """Starts and ends the sessions of one server."""

    def __init__(self, state: Path, now: Callable[[], float], *, plain: bool) -> None:
        self._state = state
        self._now = now
        self._plain = plain
        self.sessions: dict[str, RemoteSession] = {}

    def start(
        self,
        request: OpenSession,
        claims: PoolTokenClaims,
        peer: str,
        *,
        gpus: list[str] | None = None,
        linger_s: float | None = None,
    ) -> RemoteSession:
        """Start the host of a session; it asks for the share. With `linger_s` it ends after its last program."""
        milli = self._check_quota(request, claims)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        key, name = secrets.token_hex(32), secrets.token_hex(8)
        with other:
            host = subprocess.Popen(
                host_command(other.fileno()), pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, cwd="/"
            )
        session = RemoteSession(name, claims, milli, key, host, own, peer, tuple(request.command), self._now())
        self.sessions[name] = session
        own.send(
            msgspec.json.encode(
                HostRequest(
                    name,
                    key,
                    self._plain,
                    str(self._cache()),
                    [f"{claims.name}@{peer}:", *request.command],
                    request.count,
                    request.milli,
                    request.mib,
                    request.limit,
                    request.policy,
                    request.priority,
                    request.wait,
                    gpus,
                    linger_s,
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

    def hand_over(self, connection: socket.socket, name: str) -> None:
        """Give a program's connection to its session's host; only who has the key gets further there."""
        session = next((each for each in self.sessions.values() if hmac.compare_digest(each.id, name)), None)
        if session is not None and session.granted:
            connection.setblocking(True)
            with suppress(OSError):
                socket.send_fds(session.link, [CONNECTION], [connection.fileno()])
        connection.close()

    def stay(self, session: RemoteSession) -> bool:
        """Tell the host that another program is about to come; False if it has ended."""
        try:
            session.link.send(STAY)
        except OSError:
            return False
        return session.id in self.sessions

    def stop(self, sessions: Iterable[RemoteSession], why: str) -> int:
        """End sessions for a reason; returns how many."""
        stopped = list(sessions)
        for each in stopped:
            each.stop(why)
        return len(stopped)

    def end(self, session: RemoteSession) -> None:
        """End the host; its workers and its share go with it."""
        if self.sessions.pop(session.id, None) is None:
            return
        session.link.close()
        session.host.send_signal(signal.SIGKILL)
        session.host.wait()
        if session.granted:
            seconds = self._now() - session.since
            log.info(
                "session %s: closed after %.0f s for %s at %s: %s",
                session.id,
                seconds,
                session.claims.name,
                session.peer,
                session.why or "its client ended it",
            )
        trim_cache(self._cache(), _CACHE_BYTES)

    def _cache(self) -> Path:
        folder = self._state / "modules"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
