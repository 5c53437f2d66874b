"""KubeShare 1's SharePods: each becomes a pod of the same name, and tells its pod's status as its own.

The pod has the SharePod's annotations, so admission reads them as it reads everybody's, and the SharePod as its
owner, so Kubernetes removes it with the SharePod. All that is known is what the cluster shows: after a restart the
first lists are enough to go on.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import structlog

from milligpu.kube import objects
from milligpu.kube.api import MERGE_PATCH, Api, Refused
from milligpu.kube.watch import All, Watch
from milligpu.model import names
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.wire.grant import decode_grant

GROUP = "kubeshare.nthu/v1"
MADE_FOR = names.PREFIX + "sharepod"
"""A label of the pods made here: the uid of the SharePod."""

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ENDED = frozenset({"Succeeded", "Failed"})
# A quota may have room again, or a webhook be back; a person reads the status meanwhile.
_RETRY_S = 5.0
# A cluster without SharePods has no such kind: asking once in a while is enough to find it installed.
_ABSENT_S = 10.0
_CONFLICT, _GONE = 409, 404

log = structlog.get_logger()

Key = tuple[str, str]


class SharePods:
    """Runs while its instance leads; a second one would only find everything done."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._shares: dict[Key, objects.Plain] = {}
        self._pods: dict[Key, objects.Plain] = {}
        self._seen = {"shares": asyncio.Event(), "pods": asyncio.Event()}
        self._due: dict[Key, None] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        shares = Watch(self._api, f"/apis/{GROUP}/sharepods", objects.Plain, retry_s=_ABSENT_S)
        pods = Watch(self._api, "/api/v1/pods", objects.Plain, labels=MADE_FOR)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(shares, self._shares, self._seen["shares"]))
            tasks.create_task(self._follow(pods, self._pods, self._seen["pods"]))
            for seen in self._seen.values():
                await seen.wait()
            await self._work(tasks)

    async def _follow(
        self, watch: Watch[objects.Plain], known: dict[Key, objects.Plain], seen: asyncio.Event
    ) -> None:
        async for news in watch.follow():
            if isinstance(news, All):
                gone = known.keys() - {_key(each) for each in news.items}
                changes = [(False, key, None) for key in gone] + [(True, _key(each), each) for each in news.items]
                seen.set()
            else:
                changes = [(kind != "DELETED", _key(each), each) for kind, each in news.items]
            for there, key, each in changes:
                known.pop(key, None)
                if there and each is not None:
                    known[key] = each
                self._mark(key)

    def _mark(self, key: Key) -> None:
        self._due[key] = None
        self._wake.set()

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                if not await self._settle(key):
                    tasks.create_task(self._again(key))

    async def _again(self, key: Key) -> None:
        await asyncio.sleep(_RETRY_S)
        self._mark(key)

    async def _settle(self, key: Key) -> bool:
        """Bring one SharePod and its pod together; whether that is how they should stay."""
        share = self._shares.get(key)
        if share is None or share.metadata.deletionTimestamp is not None:
            return True
        try:
            return await self._settle_share(share, self._pods.get(key))
        except Unavailable as error:
            log.warning("sharepod", sharepod="/".join(key), error=error.message)
            return False

    async def _settle_share(self, share: objects.Plain, pod: objects.Plain | None) -> bool:
        if pod is not None and (pod.metadata.labels or {}).get(MADE_FOR) != share.metadata.uid:
            return False  # an earlier SharePod's pod, which Kubernetes is about to remove
        if pod is not None:
            await self._tell(share, _told(pod))
            return True
        if _phase(share) in _ENDED:
            return True
        try:
            await self._api.send("POST", f"/api/v1/namespaces/{share.metadata.namespace}/pods", pod_for(share))
        except Refused as error:
            await self._tell(
                share, {"podStatus": {"phase": "Pending", "reason": "Refused", "message": _why(error)}}
            )
            return False
        return True

    async def _tell(self, share: objects.Plain, status: dict[str, Any]) -> None:
        known = _decoded(share.status)
        change = _change(known, status)
        if not change:
            return
        path = f"/apis/{GROUP}/namespaces/{share.metadata.namespace}/sharepods/{share.metadata.name}"
        try:
            await self._api.send("PATCH", f"{path}/status", {"status": change}, kind=MERGE_PATCH)
        except Refused as error:
            if error.status != _GONE:
                raise
            # KubeShare's own definition has no status of its own to write to; or the SharePod has just gone.
            await self._patch_there(path, change)

    async def _patch_there(self, path: str, change: dict[str, Any]) -> None:
        try:
            await self._api.send("PATCH", path, {"status": change}, kind=MERGE_PATCH)
        except Refused as error:
            if error.status != _GONE:
                raise


def pod_for(share: objects.Plain) -> dict[str, Any]:
    """The pod that a SharePod asks for."""
    meta = share.metadata
    # Ours is the account that writes grants: a user's SharePod must not have it write one.
    notes = {key: text for key, text in (meta.annotations or {}).items() if key not in {_LAST_APPLIED, names.GRANT}}
    owner = {"apiVersion": GROUP, "kind": "SharePod", "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {**(meta.labels or {}), MADE_FOR: meta.uid},
            "annotations": notes,
            "ownerReferences": [owner],
        },
        "spec": _scheduled(_decoded(share.spec)),
    }


def _scheduled(spec: dict[str, Any]) -> dict[str, Any]:
    """With a node's name as a condition: a pod that has a node already passes the scheduler, and gets no GPU."""
    node = spec.pop("nodeName", None)
    if not node:
        return spec
    affinity: dict[str, Any] = dict(spec.get("affinity") or {})
    of_nodes: dict[str, Any] = dict(affinity.get("nodeAffinity") or {})
    required: dict[str, Any] = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    named: list[dict[str, Any]] = [
        {**term, "matchFields": [*(term.get("matchFields") or []), field]} for term in terms
    ]
    of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": named}
    return {**spec, "affinity": {**affinity, "nodeAffinity": of_nodes}}


def _told(pod: objects.Plain) -> dict[str, Any]:
    """What KubeShare's own status has of it."""
    meta = {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid}
    told: dict[str, Any] = {"podStatus": _decoded(pod.status), "podObjectMeta": meta}
    text = (pod.metadata.annotations or {}).get(names.GRANT)
    if text is not None:
        try:
            grant = decode_grant(text)
        except BadFormat:
            return told
        cards = {share.gpu: None for shares in grant.containers.values() for share in shares}
        told["boundDeviceID"] = ",".join(cards)
    return told


def _change(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch for the keys that differ; what is no longer there is taken out, one level down too."""
    change: dict[str, Any] = {}
    for key, value in wanted.items():
        before = known.get(key)
        if before == value:
            continue
        change[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            gone = cast("dict[str, Any]", before).keys() - cast("dict[str, Any]", value).keys()
            change[key] = {**value, **dict.fromkeys(gone)}
    return change


def _phase(share: objects.Plain) -> str:
    status: dict[str, Any] = _decoded(share.status).get("podStatus") or {}
    return str(status.get("phase", ""))


def _why(error: Refused) -> str:
    if error.status == _CONFLICT:
        return "a pod of this name is there already"
    return error.message.partition(f": {error.status} ")[2] or error.message


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    return msgspec.json.decode(raw, type=dict[str, Any] | None) or {}


def _key(each: objects.Plain) -> Key:
    return each.metadata.namespace, each.metadata.name
