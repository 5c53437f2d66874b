"""Writing grants: one Binding sets the node and carries the grant, or neither happens."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from milligpu.kube import objects
from milligpu.kube.api import Api, NotSent, Refused, Unanswered
from milligpu.model import names
from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.model.grant import Grant
from milligpu.scheduler.books import Books, Entry
from milligpu.scheduler.extender import BindOrder
from milligpu.scheduler.sight import PodReader, PodSight
from milligpu.wire.grant import encode_grant

# As many as keep the API server busy; more only wait there, and kube-scheduler gives up on a bind after 5 s.
IN_FLIGHT = 32
# kube-scheduler binds one pod after the other: where more than a few are under way, it is not what all wait for.
BUSY = 6
# A lone pod's whole way, from its creation on, takes some 12 ms; where the bind alone does, the API server is busy.
SLOW_S, MOMENT_S = 0.01, 1.0
_SETTLE_EVERY_S = 0.5
_NOT_FOUND, _CONFLICT, _SERVER_ERROR = 404, 409, 500


class Binder:
    """Binds pods, and finds out what became of binds that nobody answered."""

    def __init__(
        self, api: Api, books: Books, pods: PodReader, valid: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        """`valid` says whether we still lead; who was paused finds out here."""
        self._api = api
        self._valid = valid
        self._books = books
        self._pods = pods
        self._now = now
        self._in_flight = 0
        self._took_s = 0.0
        """How long binds take, recent ones counting most."""
        self._ended = -MOMENT_S
        self._room = asyncio.Event()
        self._room.set()

    @property
    def busy(self) -> bool:
        """Whether binds come faster than the API server carries them out."""
        slow = self._took_s > SLOW_S and self._now() < self._ended + MOMENT_S
        return self._in_flight >= BUSY or slow

    @property
    def full(self) -> bool:
        """Whether `room` would wait."""
        return self._in_flight >= IN_FLIGHT

    async def room(self) -> None:
        """Wait while too many binds are under way: who filters now would only wait for its bind later."""
        await self._room.wait()

    async def bind(self, order: BindOrder) -> None:
        """Bind or raise why not."""
        self._in_flight += 1
        if self._in_flight >= IN_FLIGHT:
            self._room.clear()
        begun = self._now()
        try:
            await self._bind(order)
        finally:
            self._in_flight -= 1
            self._ended = self._now()
            self._took_s += (self._ended - begun - self._took_s) / 8
            if self._in_flight < IN_FLIGHT:
                self._room.set()

    async def _bind(self, order: BindOrder) -> None:
        entry = self._books.entry(order.uid)
        wish = entry.wish if entry is not None else (await self._look(order.namespace, order.name, order.uid)).wish
        grant = self._books.begin_bind(wish, order.node)
        if not self._valid():
            self._books.end_bind(order.uid, bound=False)
            raise Unavailable("this instance no longer leads")
        try:
            await self._api.send("POST", _path(order.namespace, order.name, "/binding"), _binding(order, grant))
        except (Refused, NotSent) as error:
            await self._refused(order, error)
        except (Unanswered, asyncio.CancelledError):
            self._books.doubt_bind(order.uid)
            raise
        else:
            self._books.end_bind(order.uid, bound=True)

    async def _refused(self, order: BindOrder, error: Refused | NotSent) -> None:
        """A conflict may be an earlier bind of ours that was carried out after all."""
        if isinstance(error, Refused) and error.status >= _SERVER_ERROR:
            self._books.doubt_bind(order.uid)
            raise error
        if isinstance(error, Refused) and error.status == _CONFLICT:
            sight = await self._read_or_doubt(order)
            if sight is not None and sight.node:
                self._books.put_pod(sight)
                if sight.node == order.node:
                    return
        self._books.end_bind(order.uid, bound=False)
        raise error

    async def _read_or_doubt(self, order: BindOrder) -> PodSight | None:
        try:
            return await self._look(order.namespace, order.name, order.uid)
        except Refused as error:
            if error.status == _NOT_FOUND:
                return None
            self._books.doubt_bind(order.uid)
            raise
        except Unavailable:
            self._books.doubt_bind(order.uid)
            raise

    async def _look(self, namespace: str, name: str, uid: str) -> PodSight:
        """The pod as the API server has it now, or an error if it is another one by now."""
        pod = objects.decode_pod(await self._api.get(_path(namespace, name)))
        if pod.metadata.uid != uid:
            raise Refused(f"pod {namespace}/{name}", _NOT_FOUND, f"its uid is {pod.metadata.uid}, not {uid}")
        return self._pods.sight(pod)

    # -- doubts ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """For ever: read the pods whose bind was not answered, until it is clear where they are."""
        while True:
            for entry in self._books.doubtful():
                # While the API server is away the place is kept.
                with suppress(MilligpuError):
                    await self._settle(entry)
            await asyncio.sleep(_SETTLE_EVERY_S)

    async def _settle(self, entry: Entry) -> None:
        pod = entry.wish.pod
        try:
            sight = await self._look(pod.namespace, pod.name, pod.uid)
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            self._books.drop_pod(pod.uid)
            return
        self._books.put_pod(sight)
        if not sight.node:
            self._books.found_unbound(pod.uid)


def _path(namespace: str, name: str, rest: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}{rest}"


def _binding(order: BindOrder, grant: Grant | None) -> dict[str, object]:
    metadata: dict[str, object] = {"name": order.name, "namespace": order.namespace, "uid": order.uid}
    if grant is not None:
        metadata["annotations"] = {names.GRANT: encode_grant(grant)}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": order.node},
    }
