"""Resizing running pods: reads what they ask for, and writes the next generation of their grants."""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from milligpu.kube import objects
from milligpu.kube.api import JSON_PATCH, Api, NotSent, Refused
from milligpu.kube.events import pod_event
from milligpu.model import names
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.grant import Grant
from milligpu.scheduler import resizes
from milligpu.scheduler.books import Books, Entry
from milligpu.scheduler.teller import CONTROLLER
from milligpu.wire.grant import encode_grant

# What a pod waits for may change with every event of a busy cluster; its event needs not.
_AGAIN_S = 60.0
# Whatever was missed is looked at again after this long.
_LOOK_S = 1.0
_SERVER_ERROR = 500
COUNTED = f"requests.{names.VGPU}"

RESIZED, WAITS, BAD = "Resized", "ResizeWaits", "BadResize"
"""Reasons of events."""

log = structlog.get_logger()


class Resizer:
    """Works whenever there is news."""

    def __init__(
        self, api: Api, books: Books, identity: str, valid: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        """`valid` says whether we still lead."""
        self._api = api
        self._books = books
        self._reporter = (CONTROLLER, identity)
        self._valid = valid
        self._now = now
        self._news = asyncio.Event()
        self._told: dict[str, tuple[str, float]] = {}
        self._looked: dict[str, tuple[str, Grant | None, int]] = {}

    def notice(self) -> None:
        """Pods changed, or something was freed."""
        if self._books.resizing:
            self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._news.clear()
            resizes.expire(self._books, self._now())
            for uid, entry in tuple(self._books.resizing.items()):
                await self._look(uid, entry)
            self._forget()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _forget(self) -> None:
        for kept in (self._told, self._looked):
            for uid in kept.keys() - self._books.resizing.keys():
                del kept[uid]

    async def _look(self, uid: str, entry: Entry) -> None:
        seen = (entry.resize, entry.grant, self._books.freed)
        if entry.coming is not None or self._looked.get(uid) == seen:
            return
        self._looked[uid] = seen
        try:
            await self._resize(uid, entry)
        except BadRequest as error:
            hint = f" ({error.hint})" if error.hint else ""
            await self._tell(entry, BAD, error.message + hint)
        except Unavailable as error:
            self._looked.pop(uid, None)
            log.info("a resize was not written", pod=str(entry.wish.pod), error=error.message)

    async def _resize(self, uid: str, entry: Entry) -> None:
        grant = resizes.wanted(entry)
        if grant is None:
            return
        missing = resizes.short_of(self._books, entry, grant)
        if not missing and resizes.grows_beyond(entry, grant, self._books):
            await self._refuse_under_quota(entry)
            missing = resizes.short_of(self._books, entry, grant)
        if missing:
            await self._tell(entry, WAITS, resizes.explain(missing))
            return
        resizes.begin(self._books, entry, grant)
        try:
            await self._write(entry, grant)
        except BaseException as error:
            self._failed(uid, error)
            raise
        resizes.end(self._books, uid, written=True)
        log.info("resized", pod=str(entry.wish.pod), generation=grant.generation)
        await self._tell(entry, RESIZED, f"its share is now {resizes.words(grant)}")

    def _failed(self, uid: str, error: BaseException) -> None:
        """Only a clear no means that nothing was written."""
        refused = isinstance(error, Refused) and error.status < _SERVER_ERROR
        if refused or isinstance(error, NotSent | BadRequest):
            resizes.end(self._books, uid, written=False)
        else:
            resizes.doubt(self._books, uid, self._now())

    async def _refuse_under_quota(self, entry: Entry) -> None:
        """A quota counts what pods asked for when they were made: growing beyond that would pass it by."""
        path = f"/api/v1/namespaces/{entry.wish.pod.namespace}/resourcequotas"
        quotas = msgspec.json.decode(await self._api.get(path), type=_Quotas)
        for quota in quotas.items:
            if any(key.startswith(COUNTED) for key in quota.spec.hard or ()):
                want = f"at most what the pod was made with: quota {quota.metadata.name} counts that"
                raise BadRequest(names.RESIZE, entry.resize, want, hint="make the pod anew with more")

    async def _write(self, entry: Entry, grant: Grant) -> None:
        """In place of the very grant that the books know: a late or repeated write changes nothing."""
        pod = entry.wish.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        found = objects.decode_pod(await self._api.get(path))
        present = (found.metadata.annotations or {}).get(names.GRANT, "")
        where = f"/metadata/annotations/{names.GRANT.replace('/', '~1')}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": where, "value": present},
            {"op": "replace", "path": where, "value": encode_grant(grant)},
        ]
        if not resizes.is_of(entry, present) or not self._valid():
            raise NotSent(f"{pod} changed meanwhile, or this instance no longer leads")
        await self._api.send("PATCH", f"{path}/status", patch, kind=JSON_PATCH)

    async def _tell(self, entry: Entry, reason: str, text: str) -> None:
        uid, now = entry.wish.pod.uid, self._now()
        known, at = self._told.get(uid, ("", -_AGAIN_S))
        said = f"{reason}: {text}"
        if said == known or (reason == WAITS and known.startswith(WAITS) and now - at < _AGAIN_S):
            return
        self._told[uid] = (said, now)
        pod = entry.wish.pod
        kind = "Normal" if reason == RESIZED else "Warning"
        event = pod_event(
            (pod.namespace, pod.name, pod.uid), reason, "Resize", text, reporter=self._reporter, kind=kind
        )
        try:
            await self._api.send("POST", *event)
        except Unavailable as error:
            log.info("event not written", pod=str(pod), error=error.message)


class _QuotaSpec(msgspec.Struct):
    hard: dict[str, str] | None = None


class _Quota(msgspec.Struct):
    metadata: objects.Meta
    spec: _QuotaSpec = msgspec.field(default_factory=_QuotaSpec)


class _Quotas(msgspec.Struct):
    items: list[_Quota]
