"""Sessions of a cluster's pods on a GPU server: a pod's token opens exactly what its grant says.

All programs of a container have one session. It begins with the first of them and ends soon after the last, or
when the pod is gone. So there is no connection that a pod would have to keep open, and nothing to clean up.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from milligpu.model.errors import MilligpuError, NoCapacity, Unavailable
from milligpu.model.policy import DEFAULT_POLICY
from milligpu.model.request import PodRef
from milligpu.model.units import WHOLE
from milligpu.remote.pod_grants import GrantedPod, PodGrants, shares_of
from milligpu.remote.protocol import VERSION, AttachPod, OpenSession, SessionOpened
from milligpu.remote.session_hosts import RemoteSession, SessionHosts
from milligpu.remote.tokens import PoolTokenClaims
from milligpu.remote.worker import MESSAGE_MAX
from milligpu.sessions.protocol import RequestRefused, ShareGranted, decode_answer, to_error

log = logging.getLogger(__name__)

# The share of a pod that ended a moment ago may not be free yet.
_OPEN_SECONDS = 50.0
# How often pods are looked at whose programs are still connected.
_LOOK_SECONDS = 10.0
# After its last program a session waits this long for the next: programs start others.
LINGER_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _PodSession:
    pod: PodRef
    opening: asyncio.Task[RemoteSession]


class PodSessions:
    """Opens and ends the sessions of pods."""

    def __init__(self, grants: PodGrants, hosts: SessionHosts, now: Callable[[], float]) -> None:
        self._grants = grants
        self._hosts = hosts
        self._now = now
        self._sessions: dict[tuple[str, str], _PodSession] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    @property
    def granted(self) -> set[str]:
        """The names of these sessions in the machine's own session service."""
        done = (each.opening for each in self._sessions.values() if each.opening.done())
        return {task.result().granted for task in done if not task.cancelled() and task.exception() is None}

    async def attach(self, request: AttachPod, peer: str) -> SessionOpened:
        """Return the session of a container, which is opened if this is its first program."""
        granted = await self._grants.of_token(request.token)
        key = (granted.pod.uid, request.container)
        known = self._sessions.get(key)
        if known is None or not await self._is_alive(known):
            open_ = self._open(granted, request.container, peer, key)
            known = self._sessions[key] = _PodSession(granted.pod, asyncio.ensure_future(open_))
        session = await asyncio.shield(known.opening)
        return SessionOpened(session.id, session.key)

    async def _is_alive(self, known: _PodSession) -> bool:
        """Whether the session still takes programs; it then waits for another one."""
        try:
            return self._hosts.stay(await asyncio.shield(known.opening))
        except MilligpuError:
            return False

    async def _open(self, granted: GrantedPod, container: str, peer: str, key: tuple[str, str]) -> RemoteSession:
        session: RemoteSession | None = None
        try:
            session = self._start(granted, container, peer)
            async with asyncio.timeout(_OPEN_SECONDS):
                await self._wait_for_share(session)
        except BaseException as error:
            self._sessions.pop(key, None)
            if session is not None:
                self._hosts.end(session)
            if isinstance(error, TimeoutError):
                raise NoCapacity(f"the GPU of pod {granted.pod} is still in use by others") from None
            raise
        watcher = asyncio.ensure_future(self._follow(session, granted.pod, key))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return session

    def _start(self, granted: GrantedPod, container: str, peer: str) -> RemoteSession:
        milli, mib, limit, whole = shares_of(granted.grant, container)
        gpus = [each.gpu for each in granted.grant.containers[container]]
        request = OpenSession(
            VERSION,
            "",
            [f"{granted.pod}/{container}"],
            len(gpus),
            WHOLE if whole else milli,
            None if whole else mib,
            None if whole else limit,
            None if granted.grant.policy is DEFAULT_POLICY else granted.grant.policy,
            granted.grant.priority,
        )
        now = int(self._now())
        claims = PoolTokenClaims(granted.pod.uid, "pod", now, now, priority_max=granted.grant.priority)
        return self._hosts.start(request, claims, peer, gpus=gpus, linger_s=LINGER_SECONDS)

    async def _wait_for_share(self, session: RemoteSession) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.sock_recv(session.link, MESSAGE_MAX):
            match decode_answer(line):
                case ShareGranted() as share:
                    session.granted = share.session
                    log.info("session %s: opened for %s at %s", session.id, session.command[0], session.peer)
                    return
                case RequestRefused() as refused:
                    raise to_error(refused)
                case _:
                    pass
        raise Unavailable("the GPU server could not start the session")

    async def _follow(self, session: RemoteSession, pod: PodRef, key: tuple[str, str]) -> None:
        """Wait until the last program ended, the server stops the session, or the pod is gone."""
        loop = asyncio.get_running_loop()
        ended = asyncio.ensure_future(loop.sock_recv(session.link, MESSAGE_MAX))
        stopped = asyncio.ensure_future(session.stopped.wait())
        try:
            while True:
                done, _ = await asyncio.wait(
                    {ended, stopped}, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                if not await self._runs(pod):
                    session.stop("its pod is gone")
                    return
        finally:
            for task in (ended, stopped):
                task.cancel()
            self._hosts.end(session)
            if (known := self._sessions.get(key)) is not None and known.opening.result() is session:
                del self._sessions[key]

    async def _runs(self, pod: PodRef) -> bool:
        try:
            return await self._grants.is_running(pod)
        except MilligpuError as error:
            log.warning("could not read pod %s: %s", pod, error.message)
            return True
