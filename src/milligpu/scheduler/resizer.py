"""Resizes running pods: reads the share that they ask for, and writes the next generation of their grants.

A pod that was shrunk for others grows again once its GPU has had room for a while: pods that wait come first.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from milligpu.cluster import resize as resizes
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.read import PodReader
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import JSON_PATCH, ApiClient, ApiNotSent, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model import names
from milligpu.model.errors import BadRequest, NoCapacity, Unavailable
from milligpu.model.grant import Grant
from milligpu.model.reasons import EventReason
from milligpu.wait import wait_for_event
from milligpu.wire import kubernetes
from milligpu.wire.grant import encode_grant

# In a busy cluster what is missing changes all the time; the event need not.
_AGAIN_S = 60.0
_TOPIC = "resize"
_NOT_LOOKED = ("", None, -1)
# How often all pods are checked, in case a change was missed.
_LOOK_S = 1.0
_SERVER_ERROR = 500
# A waiting pod for which there is room is placed within this time; otherwise it would be shrunk again at once.
GROW_AFTER_S = 5.0
_LINES = {
    EventReason.RESIZED: "Resized pod",
    EventReason.RESIZE_WAITS: "Resize waits",
    EventReason.SHRUNK: "Shrunk pod",
    EventReason.BAD_RESIZE: "Refused resize",
}
COUNTED = f"requests.{names.VGPU}"

log = structlog.get_logger()


class Resizer:
    """Resizes pods whenever pods or capacity changed."""

    def __init__(
        self,
        api: ApiClient,
        events: EventRecorder,
        state: ClusterState,
        valid: Callable[[], bool],
        now: Callable[[], float],
        *,
        pods: PodReader,
    ) -> None:
        """`valid` says whether this instance still leads."""
        self._pods = pods
        self._api = api
        self._events = events
        self._state = state
        self._valid = valid
        self._now = now
        self._news = asyncio.Event()
        self._looked: dict[str, tuple[str, Grant | None, int]] = {}
        # Resizes that were refused, each with the grant that the pod had then.
        self._refused: dict[str, tuple[str, Grant | None]] = {}
        self._room_since: dict[str, float] = {}

    def notice(self) -> None:
        """Check again, because pods or capacity changed."""
        if self._state.pods.resizing:
            self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            for entry in resizes.unknown_resizes(self._state, self._now()):
                await self._settle(entry)
            for uid, entry in tuple(self._state.pods.resizing.items()):
                await self._look(uid, entry)
            self._forget()
            await wait_for_event(self._news, _LOOK_S)

    async def _settle(self, entry: PodEntry) -> None:
        """Read a pod to find out whether its next grant was written: the watch may have been behind."""
        pod = entry.spec.pod
        try:
            found = kubernetes.decode_pod(
                await self._api.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
            )
        except Unavailable as error:
            log.info("Could not read pod after a resize", pod=str(pod), error=error.message)
            return
        if found.metadata.uid == pod.uid and self._state.entry(pod.uid) is not None:
            self._state.put_pod(self._pods.read(found))
        resizes.end_resize(self._state, pod.uid, written=False)

    def _forget(self) -> None:
        for uid in self._looked.keys() - self._state.pods.resizing.keys():
            del self._looked[uid]
            self._refused.pop(uid, None)
            self._room_since.pop(uid, None)
            self._events.forget(uid, _TOPIC)

    async def _look(self, uid: str, entry: PodEntry) -> None:
        seen = (entry.resize, entry.grant, self._state.pods.capacity_version)
        before = self._looked.get(uid)
        if entry.next_grant is not None or before == seen:
            return
        self._looked[uid] = seen
        try:
            await self._resize(uid, entry, first=before is None or before[:2] != seen[:2])
        except BadRequest as error:
            self._refused[uid] = seen[:2]
            hint = f" ({error.hint})" if error.hint else ""
            self._post(entry, EventReason.BAD_RESIZE, error.message + hint)
        except Unavailable as error:
            self._looked[uid] = _NOT_LOOKED
            log.info("Could not write resize", pod=str(entry.spec.pod), error=error.message)

    async def _resize(self, uid: str, entry: PodEntry, *, first: bool) -> None:
        grant = resizes.wanted_grant(self._state, entry)
        if grant is None:
            self._room_since.pop(uid, None)
            return
        never = resizes.impossible_for(self._state, entry, grant)
        if never is not None:
            want = f"at most what its GPU has for pods: {never.where} has {never.amounts}"
            raise BadRequest(names.RESIZE, entry.resize, want)
        missing = resizes.missing_for(self._state, entry, grant)
        # Waiting does not help against a quota. While a pod waits, quotas are not read at every change again.
        if (first or not missing) and resizes.exceeds_request(entry, grant, self._state):
            await self._refuse_under_quota(entry)
            missing = resizes.missing_for(self._state, entry, grant)
        if missing and self._refused.get(uid) == (entry.resize, entry.grant):
            return  # it would not be resized when there is room
        if missing:
            self._room_since.pop(uid, None)
            if entry.resize:
                self._post(entry, EventReason.RESIZE_WAITS, resizes.explain_resize(missing))
            return
        if (
            entry.spec.floor is not None
            and self._now() - self._room_since.setdefault(uid, self._now()) < GROW_AFTER_S
        ):
            self._looked[uid] = _NOT_LOOKED
            return
        await self._change(entry, grant)
        self._post(entry, EventReason.RESIZED, f"its share is now {resizes.describe_grant(grant)}")

    async def shrink(self, entry: PodEntry, grant: Grant, why: str) -> None:
        """Write a smaller grant of a pod that yields to another one. Raises `Unavailable`."""
        self._room_since.pop(entry.spec.pod.uid, None)
        await self._change(entry, grant)
        message = f"its share is now {resizes.describe_grant(grant)}: {why}; it grows again when its GPU has room"
        self._post(entry, EventReason.SHRUNK, message)

    async def set_share(self, entry: PodEntry, grant: Grant, service: str) -> None:
        """Write the grant that a service decided on, and the service's name; empty if it rules the pod no longer.

        Raises `BadRequest` if a quota counts the pod's share, and `NoCapacity` if its GPUs have too little free.
        """
        before = entry.grant
        if resizes.grows(entry, grant) and resizes.exceeds_request(entry, grant, self._state):
            await self._refuse_under_quota(entry)
        if self._state.entry(entry.spec.pod.uid) is not entry or entry.grant is not before or entry.next_grant:
            raise ApiNotSent(f"{entry.spec.pod} changed meanwhile")
        missing = resizes.missing_for(self._state, entry, grant)
        if missing:
            raise NoCapacity(resizes.explain_resize(missing))
        self._state.pods.in_services[entry.spec.pod.uid] = entry
        await self._change(entry, grant, service)
        entry.service = service

    async def _change(self, entry: PodEntry, grant: Grant, service: str | None = None) -> None:
        """Write the next grant; until it is known which of them holds, both count."""
        uid = entry.spec.pod.uid
        resizes.begin_resize(self._state, entry, grant)
        try:
            await self._write(entry, grant, service)
        except BaseException as error:
            self._failed(uid, error)
            raise
        resizes.end_resize(self._state, uid, written=True)

    def _failed(self, uid: str, error: BaseException) -> None:
        """Keep counting the next grant, unless it is certain that it was not written."""
        refused = isinstance(error, ApiRefused) and error.status < _SERVER_ERROR
        if refused or isinstance(error, ApiNotSent | BadRequest):
            resizes.end_resize(self._state, uid, written=False)
        else:
            resizes.mark_resize_unknown(self._state, uid, self._now())

    async def _refuse_under_quota(self, entry: PodEntry) -> None:
        """Refuse to grow where a quota counts: it counts what pods were created with, so growing would evade it."""
        path = f"/api/v1/namespaces/{entry.spec.pod.namespace}/resourcequotas"
        quotas = msgspec.json.decode(await self._api.get(path), type=_Quotas)
        for quota in quotas.items:
            if any(key.startswith(COUNTED) for key in quota.spec.hard or ()):
                want = f"at most what the pod was created with, which quota {quota.metadata.name} counts"
                raise BadRequest(names.RESIZE, entry.resize, want, hint="create the pod again with a larger share")

    async def _write(self, entry: PodEntry, grant: Grant, service: str | None) -> None:
        """Replace exactly the grant that the cluster state has: a late or repeated write changes nothing."""
        pod = entry.spec.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            found = kubernetes.decode_pod(await self._api.get(path))
        except Unavailable as error:
            raise ApiNotSent(error.message) from None  # so it is certain that nothing was written
        present = (found.metadata.annotations or {}).get(names.GRANT, "")
        where, rules = (f"/metadata/annotations/{name.replace('/', '~1')}" for name in (names.GRANT, names.SERVICE))
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": where, "value": present},
            {"op": "replace", "path": where, "value": encode_grant(grant)},
        ]
        if service:
            patch.append({"op": "add", "path": rules, "value": service})
        elif service is not None and names.SERVICE in (found.metadata.annotations or {}):
            patch.append({"op": "remove", "path": rules})
        if not resizes.is_current_grant(entry, present) or not self._valid():
            raise ApiNotSent(f"{pod} changed meanwhile, or this instance is no longer the leader")
        await self._api.send("PATCH", f"{path}/status", patch, kind=JSON_PATCH)

    def _post(self, entry: PodEntry, reason: EventReason, message: str) -> None:
        normal = reason in {EventReason.RESIZED, EventReason.SHRUNK}
        event = PodEvent(entry.spec.pod, reason, "Resize", message, normal=normal)
        again_s = _AGAIN_S if reason is EventReason.RESIZE_WAITS else 0.0
        if self._events.record(event, topic=_TOPIC, again_s=again_s):
            log.info(_LINES[reason], pod=str(event.pod), node=entry.node, message=message, uid=event.uid)
        if self._state.entry(event.uid) is None:
            self._events.forget(event.uid)  # its end was seen during the write


class _QuotaSpec(msgspec.Struct):
    hard: dict[str, str] | None = None


class _Quota(msgspec.Struct):
    metadata: kubernetes.ObjectMeta
    spec: _QuotaSpec = msgspec.field(default_factory=_QuotaSpec)


class _Quotas(msgspec.Struct):
    items: list[_Quota]
