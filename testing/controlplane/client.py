"""Stands in for `kube.api.ApiClient`: the same requests and errors, over a network with injected faults."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from milligpu.kube.api import JSON, JSON_PATCH, TIMEOUT_S, ApiNotSent, ApiRefused, ApiUnanswered
from milligpu.model.names import GROUP_VERSION
from testing.controlplane.clock import ProcessLoop, VirtualClock
from testing.controlplane.objects import GONE, NOT_FOUND, Refusal
from testing.controlplane.server import Change, SimulatedServer

# A leader's term ends 5 s before another instance may take the Lease; a write that is carried out later than that
# after it was sent may meet another leader's.
LATE_S = 5.0
_BOOKMARK_S = 50.0
_WATCH_S = 240.0


class Fault(Enum):
    """What happens to one request."""

    NOT_SENT = "is not sent"
    LOST = "is lost on the way"
    NO_ANSWER = "is carried out, and its answer is lost"
    LATE = "is carried out 20 s later, without an answer"
    SLOW = "is carried out and answered 3 s later"
    TOO_MANY = "is answered with 429"
    NOT_NOW = "is answered with 503, to be sent again after 3 s"
    BROKEN = "is answered with 500"
    BROKEN_AFTER = "is carried out and answered with 500"


_DELAY_S = {Fault.LATE: 20.0, Fault.SLOW: 3.0}
# Status and Retry-After.
_STATUS = {
    Fault.TOO_MANY: (429, 1.0),
    Fault.NOT_NOW: (503, 3.0),
    Fault.BROKEN: (500, 0.0),
    Fault.BROKEN_AFTER: (500, 0.0),
}


@dataclass(slots=True)
class Network:
    """The faults to inject, by kind of request, and the delays of the network."""

    clock: VirtualClock
    dice: Random
    due: dict[str, deque[Fault]] = field(default_factory=dict[str, deque[Fault]])
    down_until: dict[str, float] = field(default_factory=dict[str, float])
    """Kinds of requests that fail until then."""
    list_s: float = 0.0
    watch_s: float = 0.0
    page: int = 500
    """Objects in a page of a list, at most: a server may send fewer than it was asked for."""
    streams: list["Stream"] = field(default_factory=list["Stream"])
    late_until: float = 0.0

    def take(self, kind: str) -> Fault | None:
        if self.down_until.get(kind, 0.0) > self.clock.now:
            return Fault.NOT_SENT
        faults = self.due.get(kind)
        return faults.popleft() if faults else None

    def heal(self) -> None:
        self.due.clear()
        self.down_until.clear()
        self.list_s = self.watch_s = 0.0

    def trip(self) -> float:
        """The delay in one direction."""
        return self.dice.choice((0.0005, 0.001, 0.003))


class Stream:
    """One watch: the lines that the server has sent and those that it has yet to send."""

    def __init__(self, network: Network, loop: ProcessLoop, kind: str, owner: str) -> None:
        self._network = network
        self._loop = loop
        self.kind = kind
        self.owner = owner
        self.lines: deque[bytes | BaseException | None] = deque()
        self.news = asyncio.Event()
        self.half_open = False
        self.ended = False
        self._sent: deque[bytes] = deque(maxlen=4)
        self._last_at = 0.0

    @property
    def delivered(self) -> bool:
        """Whether all that was sent has arrived."""
        return not self.half_open and self._last_at < self._network.clock.now

    def put(self, line: "bytes | BaseException | None") -> None:
        """Deliver after the watch's delay, in order; nothing arrives once the connection is half open."""
        if self.half_open or self.ended:
            return
        self._last_at = max(self._last_at, self._network.clock.now + self._network.watch_s + 0.0005)
        if isinstance(line, bytes):
            self._sent.append(line)
        self._network.clock.at(self._last_at, lambda: self._arrive(line))

    def _arrive(self, line: "bytes | BaseException | None") -> None:
        if not self.half_open and not self.ended and not self._loop.is_closed():
            self.lines.append(line)
            self.news.set()

    async def wait(self, silence_s: float) -> None:
        """Wait for the next line, which is an error if none comes for so long."""
        self.news.clear()
        timer = self._loop.call_later(silence_s, self._silent)
        try:
            await self.news.wait()
        finally:
            timer.cancel()

    def _silent(self) -> None:
        self.lines.append(ApiUnanswered("silence"))
        self.news.set()

    def repeat(self) -> None:
        """Send the last changes again, as after a reconnect at an older version."""
        for line in tuple(self._sent):
            self.put(line)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: Any
    kind: str
    """The kind of request, by which faults are chosen."""


def _refusal(fault: Fault) -> Refusal:
    status, after_s = _STATUS[fault]
    return Refusal(status, str(fault.value), after_s)


def _fail(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _line(change: Change) -> bytes:
    return b'{"type":"' + change.type.encode() + b'","object":' + change.text + b"}"


class SimulatedClient:
    """The requests of one process."""

    def __init__(self, server: SimulatedServer, network: Network, loop: ProcessLoop, owner: str) -> None:
        self._server = server
        self._network = network
        self._loop = loop
        self._owner = owner
        self.dead = False
        self.die_at: int | None = None
        """Number of requests after which the process is killed."""
        self.on_death: Callable[[], None] | None = None
        self._pages: dict[str, tuple[int, list[bytes]]] = {}
        self.sent: list[str] = []

    # -- requests ---

    async def get(self, path: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
        return await self.send("GET", path, timeout_s=timeout_s)

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = JSON,
        accept: str = JSON,  # noqa: ARG002 - as `ApiClient` has it
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Send a request; the network decides whether it fails, and how."""
        if self.dead:
            raise ApiNotSent("dead")
        what, named = f"{method} {path}", _kind_of(path, kind)
        document = msgspec.json.decode(msgspec.json.encode(body)) if body is not None else None
        fault = self._network.take(named)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if named == "ungate":
            self._server.turns.add(path.rpartition("/")[2])
        self._dispatch(_Request(method, path, document, named), fault, answer)
        self._count_down()
        if fault is Fault.NOT_SENT:
            await asyncio.sleep(0.001)
            raise ApiNotSent(what)
        timer = self._loop.call_later(timeout_s, _fail, answer, ApiUnanswered(f"{what}: TimeoutError"))
        try:
            return await answer
        except Refusal as error:
            raise ApiRefused(what, error.status, str(error), error.retry_after_s) from None
        finally:
            timer.cancel()

    def _count_down(self) -> None:
        if self.die_at is not None:
            self.die_at -= 1
            if self.die_at <= 0 and self.on_death is not None:
                self.die_at = None
                self._network.clock.after(0.0, self.on_death)

    def _dispatch(self, request: "_Request", fault: Fault | None, answer: "asyncio.Future[bytes]") -> None:
        clock, sent_at = self._network.clock, self._network.clock.now
        slow = self._network.list_s if request.kind.startswith("list") else 0.0
        delay = self._network.trip() + (_DELAY_S.get(fault, 0.0) if fault is not None else 0.0)
        if fault in _DELAY_S:
            self._network.late_until = max(self._network.late_until, sent_at + delay)

        def carry_out() -> None:
            late = clock.now - sent_at > LATE_S and self._server.leader != self._owner
            try:
                result: bytes | Refusal = self._answer(request, late=late)
            except Refusal as refusal:
                result = refusal
            if fault in _STATUS:
                result = _refusal(fault)
            if fault is None or fault is Fault.SLOW or fault in _STATUS:
                clock.after(self._network.trip() + slow, lambda: self._deliver(answer, result))

        if fault in {Fault.TOO_MANY, Fault.NOT_NOW, Fault.BROKEN}:
            refusal = _refusal(fault)
            clock.after(delay, lambda: self._deliver(answer, refusal))
        elif fault not in {Fault.LOST, Fault.NOT_SENT}:
            clock.after(delay, carry_out)

    def _deliver(self, answer: "asyncio.Future[bytes]", result: bytes | Refusal) -> None:
        if self.dead or answer.done():
            return
        if isinstance(result, Refusal):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _answer(self, request: "_Request", *, late: bool) -> bytes:
        server, (plain, _, query) = self._server, request.path.partition("?")
        method, body = request.method, request.body
        parts = plain.strip("/").split("/")
        if "leases" in parts:
            if method == "GET":
                return server.read_lease()
            server.write_lease(body, create=method == "POST")
        elif parts[-1] == "events" or (parts[2] == "nodes" and method == "PATCH"):
            pass  # objects that no code here reads
        elif parts[-1] == "resourcequotas":
            return b'{"items":[]}'
        elif request.kind == "class":
            return self._resources(parts[-1])
        elif method == "GET" and parts[:2] == ["api", "v1"] and len(parts) == 3:
            return self._list(parts[2], query)
        elif method == "GET":
            return server.read_pod(parts[5])
        elif parts[-1] == "eviction":
            server.evict(parts[5], body)
        elif parts[-1] == "binding":
            server.bind(parts[5], body, forgiven=late)
        elif parts[-1] == "status":
            server.patch_status(parts[5], body, forgiven=late)
        else:
            server.patch_pod(parts[5], body)
        return b"{}"

    def _resources(self, kind: str) -> bytes:
        """List milligpu's own kinds; there are no objects of them, but for the queue."""
        if not self._server.has_kinds:
            raise Refusal(NOT_FOUND, "the server could not find the requested resource")
        queue = self._server.queue
        items = [queue] if queue is not None and kind == "gpuqueues" else []
        return msgspec.json.encode({"metadata": {"resourceVersion": str(self._server.version)}, "items": items})

    def _list(self, kind: str, query: str) -> bytes:
        """Answer a page; all pages of a list are of the version at which the list began."""
        token = parse_qs(query).get("continue", [""])[0]
        if token:
            found = self._pages.pop(unquote(token), None)
            if found is None or found[0] < self._server.compacted:
                raise Refusal(GONE, "The provided continue parameter is too old")
            version, rest = found
        else:
            things = self._server.pods if kind == "pods" else self._server.nodes
            version, rest = self._server.version, [msgspec.json.encode(thing) for thing in things.values()]
        page, rest = rest[: self._network.page], rest[self._network.page :]
        more = f"{kind}-{version}-{len(rest)}" if rest else ""
        if rest:
            self._pages[more] = version, rest
        head = msgspec.json.encode({"resourceVersion": str(version), "continue": more})
        return b'{"metadata":' + head + b',"items":[' + b",".join(page) + b"]}"

    # -- watches ---

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """Yield the lines of a watch, as `ApiClient.lines` does."""
        split = urlsplit(path)
        kind, asked = split.path.rsplit("/", 1)[1], parse_qs(split.query)
        if self._network.take(f"watch-{kind}") is not None:
            await asyncio.sleep(0.001)
            raise ApiUnanswered(path)
        version = int(asked["resourceVersion"][0])
        if version < self._server.compacted:
            yield [b'{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}']
            return
        await asyncio.sleep(self._network.dice.choice((0.001, 0.02, 0.2)) + self._network.watch_s)
        stream = Stream(self._network, self._loop, kind, self._owner)
        for change in self._server.history:
            if change.version > version and change.kind == kind:
                stream.put(_line(change))

        def listen(change: Change) -> None:
            stream.put(_line(change))

        listeners = self._server.listeners.get(kind, [])
        listeners.append(listen)
        self._network.streams.append(stream)
        clock = self._network.clock
        clock.after(_BOOKMARK_S, lambda: self._bookmark(stream))
        clock.after(_WATCH_S, lambda: stream.put(None))
        try:
            while True:
                batch = await self._batch(stream, silence_s)
                if batch is None:
                    return
                yield batch
        finally:
            stream.ended = True
            listeners.remove(listen)
            self._network.streams.remove(stream)

    def _bookmark(self, stream: Stream) -> None:
        if not stream.ended:
            mark = {"metadata": {"resourceVersion": str(self._server.version)}}
            stream.put(msgspec.json.encode({"type": "BOOKMARK", "object": mark}))
            self._network.clock.after(_BOOKMARK_S, lambda: self._bookmark(stream))

    @staticmethod
    async def _batch(stream: Stream, silence_s: float) -> list[bytes] | None:
        while not stream.lines:
            await stream.wait(silence_s)
        batch: list[bytes] = []
        while stream.lines:
            line = stream.lines[0]
            if not isinstance(line, bytes):
                if batch:
                    return batch
                stream.lines.popleft()
                if line is None:
                    return None
                raise line
            batch.append(line)
            stream.lines.popleft()
        return batch


def _kind_of(path: str, kind: str) -> str:
    """The kind of a request, by which faults are chosen."""
    plain = path.partition("?")[0]
    last = plain.rsplit("/", 1)[1]
    if "/leases" in plain:
        return "lease"
    if plain.startswith(f"/apis/{GROUP_VERSION}/"):
        return "class"
    if last == "status" and "/nodes/" in plain:
        return "node"
    if kind == JSON_PATCH and plain.rsplit("/", 2)[1] == "pods":
        return "ungate"
    if last in {"pods", "nodes"}:
        return f"list-{last}"
    if last == "status":
        return "resize" if kind == JSON_PATCH else "nominate"
    return {
        "binding": "bind",
        "eviction": "evict",
        "events": "event",
        "resourcequotas": "quota",
    }.get(last, "read")
