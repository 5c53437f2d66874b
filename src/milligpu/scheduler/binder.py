"""Binds pods: one Binding sets the node and carries the grant, or neither happens."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.read import PodReader
from milligpu.cluster.resize import describe_grant
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import ApiClient, ApiNotSent, ApiRefused, ApiUnanswered
from milligpu.model import names
from milligpu.model.errors import MilligpuError, Unavailable
from milligpu.model.grant import Grant
from milligpu.model.request import PodRef
from milligpu.scheduler.extender import BindRequest
from milligpu.scheduler.group_binds import GroupBinds
from milligpu.wire.grant import encode_grant
from milligpu.wire.kubernetes import decode_pod

# As many binds as keep the API server busy; more would wait there, and kube-scheduler gives up after 5 s.
IN_FLIGHT = 32
# kube-scheduler binds one pod after the other: if more than a few binds run, it is not the bottleneck.
BUSY = 6
# A single pod is bound some 12 ms after its creation; if the bind alone takes that long, the API server is busy.
SLOW_S, MOMENT_S = 0.01, 1.0
_SETTLE_EVERY_S = 0.5
_NOT_FOUND, _CONFLICT, _SERVER_ERROR = 404, 409, 500

log = structlog.get_logger()


class Binder:
    """Binds pods, and finds out what became of binds without an answer."""

    def __init__(
        self,
        api: ApiClient,
        state: ClusterState,
        pods: PodReader,
        valid: Callable[[], bool],
        now: Callable[[], float],
        *,
        drop: Callable[[str], None],
        server_text: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`valid` says whether this instance still leads; one that was paused finds out here.

        `drop` forgets a pod that is gone; `server_text` says how a pod reaches the GPU server that its grant names.
        """
        self._drop = drop
        self._server_text = server_text
        self._api = api
        self._valid = valid
        self._state = state
        self._groups = GroupBinds(state)
        self._pods = pods
        self._now = now
        self._in_flight = 0
        self._took_s = 0.0
        """How long a bind takes: an average in which recent binds count most."""
        self._ended = -MOMENT_S
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether binds arrive faster than the API server carries them out."""
        slow = self._took_s > SLOW_S and self._now() < self._ended + MOMENT_S
        return self._in_flight >= BUSY or slow

    @property
    def full(self) -> bool:
        """Whether `room` would wait."""
        return self._in_flight >= IN_FLIGHT

    async def room(self) -> None:
        """Block until fewer than `IN_FLIGHT` binds are running: kube-scheduler gives up on a bind after 5 s."""
        await self._room.wait()

    async def idle(self) -> None:
        """Block until no bind is running; each ends when its request is answered or times out."""
        await self._idle.wait()

    async def bind(self, request: BindRequest) -> None:
        try:
            await self._bind_in_turn(request)
        finally:
            # The pod may have been read after the watch had shown that it is gone.
            self._pods.forget_unknown(request.pod.uid, self._state)

    async def _bind_in_turn(self, request: BindRequest) -> None:
        entry = self._state.entry(request.pod.uid)
        spec = entry.spec if entry is not None else (await self._read(request.pod)).spec
        # A bind that waits for others of its group is not under way yet: it must not hold up other pods.
        grant = await self._groups.begin(spec, request.node)
        self._in_flight += 1
        self._idle.clear()
        if self._in_flight >= IN_FLIGHT:
            self._room.clear()
        begun = self._now()
        try:
            await self._bind(request, grant)
        finally:
            self._in_flight -= 1
            self._ended = self._now()
            self._took_s += (self._ended - begun - self._took_s) / 8
            if self._in_flight < IN_FLIGHT:
                self._room.set()
            if not self._in_flight:
                self._idle.set()

    async def _bind(self, request: BindRequest, grant: Grant | None) -> None:
        if not self._valid():
            self._state.binds.end(request.pod.uid, bound=False)
            raise Unavailable("this instance is no longer the leader")
        try:
            await self._api.send("POST", _path(request.pod, "/binding"), self._binding(request, grant))
        except (ApiRefused, ApiNotSent) as error:
            await self._refused(request, error)
        except (ApiUnanswered, asyncio.CancelledError):
            self._state.binds.mark_unknown(request.pod.uid)
            raise
        else:
            self._state.binds.end(request.pod.uid, bound=True)
            _log_bound(request.pod, request.node, grant)

    def _binding(self, request: BindRequest, grant: Grant | None) -> dict[str, object]:
        metadata: dict[str, object] = {
            "name": request.pod.name,
            "namespace": request.pod.namespace,
            "uid": request.pod.uid,
        }
        if grant is not None:
            server = self._server_text(grant.node)
            reached = {names.GPU_SERVER: server} if server else {}
            metadata["annotations"] = {names.GRANT: encode_grant(grant), **reached}
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
        }

    async def _refused(self, request: BindRequest, error: ApiRefused | ApiNotSent) -> None:
        """Find out whether a conflict is our earlier bind, carried out after all."""
        if isinstance(error, ApiRefused) and error.status >= _SERVER_ERROR:
            self._state.binds.mark_unknown(request.pod.uid)
            raise error
        if isinstance(error, ApiRefused) and error.status == _CONFLICT:
            observed = await self._read_or_mark_unknown(request)
            if observed is not None and observed.node:
                self._put(observed)
                if observed.node == request.node:
                    _log_bound(request.pod, observed.node, observed.grant)
                    return
        self._state.binds.end(request.pod.uid, bound=False)
        raise error

    async def _read_or_mark_unknown(self, request: BindRequest) -> ObservedPod | None:
        try:
            return await self._read(request.pod)
        except ApiRefused as error:
            if error.status == _NOT_FOUND:
                return None
            self._state.binds.mark_unknown(request.pod.uid)
            raise
        except Unavailable:
            self._state.binds.mark_unknown(request.pod.uid)
            raise

    async def _read(self, pod: PodRef) -> ObservedPod:
        """Read the pod; a pod of the same name with another uid is an error."""
        found = decode_pod(await self._api.get(_path(pod)))
        if found.metadata.uid != pod.uid:
            raise ApiRefused(f"pod {pod}", _NOT_FOUND, f"its uid is {found.metadata.uid}, not {pod.uid}")
        return self._pods.read(found)

    def _put(self, observed: ObservedPod) -> None:
        """Add what was read, unless the watch has shown meanwhile that the pod is gone."""
        if self._state.entry(observed.uid) is not None:
            self._state.put_pod(observed)
        self._pods.forget_unknown(observed.uid, self._state)

    # -- binds without an answer -------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Read the pods whose bind had no answer, until it is clear where they are; until cancelled."""
        while True:
            for entry in self._state.binds.unknown():
                # The place is kept while the API server is away.
                with suppress(MilligpuError):
                    await self._settle(entry)
            await asyncio.sleep(_SETTLE_EVERY_S)

    async def _settle(self, entry: PodEntry) -> None:
        pod = entry.spec.pod
        try:
            observed = await self._read(pod)
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            self._drop(pod.uid)
            return
        self._put(observed)
        if observed.node:
            _log_bound(pod, observed.node, observed.grant)
        else:
            self._state.binds.confirm_unbound(pod.uid)


def _log_bound(pod: PodRef, node: str, grant: Grant | None) -> None:
    shares = "no GPU" if grant is None else describe_grant(grant)
    log.info("Bound pod", pod=str(pod), node=node, shares=shares, uid=pod.uid)


def _path(pod: PodRef, rest: str = "") -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}{rest}"
