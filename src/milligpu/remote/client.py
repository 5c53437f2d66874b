"""The client's side: asks servers, chooses one, and opens a session there or waits in the queues of all."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from milligpu.model.errors import MilligpuError, NoCapacity, Unavailable
from milligpu.native import library
from milligpu.remote.connection import CONNECT_SECONDS, ServerConnection
from milligpu.remote.filters import GpuFilter, filter_gpus
from milligpu.remote.protocol import (
    BEAT_SECONDS,
    SILENCE_SECONDS,
    VERSION,
    ClientBeat,
    DrainServer,
    GpuList,
    ListGpus,
    OpenSession,
    ReadServerStatus,
    RemoteAnswer,
    RemoteRequest,
    ServerDrained,
    ServerMessage,
    ServerStatus,
    SessionOpened,
    SessionWaits,
)
from milligpu.remote.token_file import PoolAccess

_T = TypeVar("_T", bound=RemoteAnswer)
ChooseServer = Callable[[OpenSession, Mapping[str, GpuList]], str | None]
"""Says where a request fits best now; None: nowhere."""
# A server that has to start a software GPU, or many sessions at once.
_ANSWER_SECONDS = 120.0
# A server that is slower than this is not chosen; a command can still wait in its queue.
_CHOICE_SECONDS = 5.0
# Servers that are asked at the same time.
_ROUND = 32


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session that was granted, with the connection on which it depends."""

    connection: ServerConnection
    opened: SessionOpened
    plain: bool

    @property
    def variables(self) -> dict[str, str]:
        """What the client's libraries need to know."""
        found = {
            "MILLIGPU_REMOTE": self.connection.server,
            "MILLIGPU_REMOTE_SESSION": self.opened.session,
            "MILLIGPU_REMOTE_KEY": self.opened.key,
        }
        return {**found, **({"MILLIGPU_REMOTE_PLAIN": "1"} if self.plain else {})}


def remote_environment(variables: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program's CUDA calls go to the session's server."""
    folder = str(library("remote/libcuda.so.1").parent)
    path = [part for part in env.get("LD_LIBRARY_PATH", "").split(":") if part and part != folder]
    # Set by a local session or a container, they name GPUs of this machine.
    hidden = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    kept = {name: value for name, value in env.items() if name not in hidden}
    return {**kept, **variables, "LD_LIBRARY_PATH": ":".join([folder, *path])}


class SessionRace:
    """Waits in the queues of several servers at once, and takes the first share that is granted."""

    def __init__(self, access: PoolAccess, *, plain: bool, only: Mapping[str, Sequence[str]] | None = None) -> None:
        """`only`: the GPUs of each server that will do; None: all."""
        self._access = access
        self._only = only
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
                thread.join(CONNECT_SECONDS)
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
            named = None if self._only is None else list(self._only[server])
            connection.send(msgspec.structs.replace(request, gpus=named))
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


def open_session(
    access: PoolAccess,
    request: OpenSession,
    timeout: float | None,
    waits: Callable[[str], None],
    choose: ChooseServer | None,
    *,
    plain: bool,
    filters: Sequence[GpuFilter] = (),
) -> OpenedSession:
    """Open a session at the server where it fits best now; if it fits nowhere, wait in the queues of all.

    `choose` is left out where there is one server, so that its client needs no placement. `filters` leave GPUs out.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    only = None
    if filters:
        only = _matching(access, filters, plain=plain)
        access = replace(access, servers=tuple(only))
    if choose is not None:
        opened = _open_best(access, request, choose, plain=plain, only=only)
        if opened is not None:
            return opened
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    return SessionRace(access, plain=plain, only=only).run(request, left, waits)


def _lists(access: PoolAccess, *, plain: bool) -> dict[str, GpuList]:
    asked = ask_all(access, ListGpus(VERSION, access.token), GpuList, plain=plain, seconds=_CHOICE_SECONDS)
    return dict(answered(asked, GpuList))


def _matching(access: PoolAccess, filters: Sequence[GpuFilter], *, plain: bool) -> dict[str, list[str]]:
    """The GPUs that meet the filters, by server."""
    matching = filter_gpus(filters, _lists(access, plain=plain))
    found = {server: [gpu.uuid for gpu in each.gpus] for server, each in matching.items()}
    if not found:
        raise NoCapacity("no GPU of the servers that answered meets all filters", hint="see: bitfusion list_gpus")
    return found


def _open_best(
    access: PoolAccess,
    request: OpenSession,
    choose: ChooseServer,
    *,
    plain: bool,
    only: Mapping[str, Sequence[str]] | None,
) -> OpenedSession | None:
    """Open it at the best server; at the next best if that has no room any more. None if it fits nowhere now."""
    answers = _lists(access, plain=plain)
    if only is not None:
        answers = {server: _narrowed(each, only[server]) for server, each in answers.items()}
    now = msgspec.structs.replace(request, wait=False)
    while (server := choose(request, answers)) is not None:
        try:
            race = SessionRace(replace(access, servers=(server,)), plain=plain, only=only)
            return race.run(now, None, lambda _: None)
        except (NoCapacity, Unavailable):
            del answers[server]
    return None


def _narrowed(answer: GpuList, uuids: Sequence[str]) -> GpuList:
    return msgspec.structs.replace(answer, gpus=[gpu for gpu in answer.gpus if gpu.uuid in uuids])


def ask(
    server: str, access: PoolAccess, request: RemoteRequest, kind: type[_T], *, plain: bool, seconds: float
) -> _T | MilligpuError:
    """Ask one server; an error is returned, because the others' answers count without it."""
    try:
        connection = ServerConnection(server, access, plain=plain)
        try:
            connection.send(request)
            answer = connection.receive(seconds)
        finally:
            connection.close()
    except MilligpuError as error:
        return error
    except OSError as error:  # TimeoutError, too
        return Unavailable(f"GPU server {server}: {error.strerror or 'does not answer'}")
    return answer if isinstance(answer, kind) else Unavailable(f"GPU server {server}: sent an unexpected answer")


def ask_all(
    access: PoolAccess, request: RemoteRequest, kind: type[_T], *, plain: bool, seconds: float = _ANSWER_SECONDS
) -> list[tuple[str, _T | MilligpuError]]:
    """Ask every server, many at the same time; the answers are in the servers' order."""

    def one(server: str) -> tuple[str, _T | MilligpuError]:
        return server, ask(server, access, request, kind, plain=plain, seconds=seconds)

    with ThreadPoolExecutor(min(_ROUND, len(access.servers))) as threads:
        return list(threads.map(one, access.servers))


def list_gpus(access: PoolAccess, *, plain: bool) -> list[tuple[str, GpuList | MilligpuError]]:
    return ask_all(access, ListGpus(VERSION, access.token), GpuList, plain=plain)


def read_servers(access: PoolAccess, *, plain: bool) -> list[tuple[str, ServerStatus | MilligpuError]]:
    return ask_all(access, ReadServerStatus(VERSION, access.token), ServerStatus, plain=plain)


def drain_servers(
    access: PoolAccess, *, drain: bool, plain: bool
) -> list[tuple[str, ServerDrained | MilligpuError]]:
    return ask_all(access, DrainServer(VERSION, access.token, drain), ServerDrained, plain=plain)


def answered(found: Iterable[tuple[str, _T | MilligpuError]], kind: type[_T]) -> list[tuple[str, _T]]:
    """The answers without the errors."""
    return [(server, each) for server, each in found if isinstance(each, kind)]
