"""KubeShare 1's SharePods: creates a pod of the same name for each, and copies the pod's status to the SharePod.

The pod has the SharePod's annotations, which admission reads like those of any pod, and the SharePod as its owner,
so Kubernetes deletes both together. Nothing is persisted: after a restart the first lists are enough to continue.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import structlog

from milligpu.kube.api import MERGE_PATCH, ApiClient, ApiRefused
from milligpu.kube.watch import Relisted, Watch
from milligpu.model import names
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.wire import kubernetes
from milligpu.wire.grant import decode_grant

GROUP = "kubeshare.nthu/v1"
MADE_FOR = names.PREFIX + "sharepod"
"""A label of the pods that are created here: the uid of the SharePod."""

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ENDED = frozenset({"Succeeded", "Failed"})
# A quota may have room again, or a webhook be available; meanwhile the status says what is wrong.
_RETRY_S = 5.0
# A cluster without KubeShare's CRD refuses the watch; this is how soon a new CRD is found.
_ABSENT_S = 10.0
_CONFLICT, _GONE = 409, 404

log = structlog.get_logger()

Key = tuple[str, str]


class SharePodController:
    """Runs in the leader; a second one would find everything done."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._shares: dict[Key, kubernetes.RawObject] = {}
        self._pods: dict[Key, kubernetes.RawObject] = {}
        self._seen = {"shares": asyncio.Event(), "pods": asyncio.Event()}
        self._due: dict[Key, None] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        shares = Watch(self._api, f"/apis/{GROUP}/sharepods", kubernetes.RawObject, retry_s=_ABSENT_S)
        pods = Watch(self._api, "/api/v1/pods", kubernetes.RawObject, labels=MADE_FOR)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(shares, self._shares, self._seen["shares"]))
            tasks.create_task(self._follow(pods, self._pods, self._seen["pods"]))
            for seen in self._seen.values():
                await seen.wait()
            await self._work(tasks)

    async def _follow(
        self, watch: Watch[kubernetes.RawObject], known: dict[Key, kubernetes.RawObject], seen: asyncio.Event
    ) -> None:
        async for news in watch.follow():
            if isinstance(news, Relisted):
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
        """Create or update what one SharePod needs; False if it has to be tried again."""
        share = self._shares.get(key)
        if share is None or share.metadata.deletionTimestamp is not None:
            return True
        try:
            return await self._settle_share(share, self._pods.get(key))
        except Unavailable as error:
            log.warning("Could not update SharePod", sharepod="/".join(key), error=error.message)
            return False

    async def _settle_share(self, share: kubernetes.RawObject, pod: kubernetes.RawObject | None) -> bool:
        if pod is not None and (pod.metadata.labels or {}).get(MADE_FOR) != share.metadata.uid:
            return False  # the pod of an earlier SharePod, which Kubernetes is about to delete
        if pod is not None:
            await self._write_status(share, _status_of(pod))
            return True
        if _phase(share) in _ENDED:
            return True
        try:
            await self._api.send("POST", f"/api/v1/namespaces/{share.metadata.namespace}/pods", pod_for(share))
        except ApiRefused as error:
            await self._write_status(
                share, {"podStatus": {"phase": "Pending", "reason": "Refused", "message": _why(error)}}
            )
            return False
        return True

    async def _write_status(self, share: kubernetes.RawObject, status: dict[str, Any]) -> None:
        known = _decoded(share.status)
        change = _change(known, status)
        if not change:
            return
        path = f"/apis/{GROUP}/namespaces/{share.metadata.namespace}/sharepods/{share.metadata.name}"
        try:
            await self._api.send("PATCH", f"{path}/status", {"status": change}, kind=MERGE_PATCH)
        except ApiRefused as error:
            if error.status != _GONE:
                raise
            # KubeShare's CRD has no status subresource; or the SharePod was just deleted.
            await self._patch_there(path, change)

    async def _patch_there(self, path: str, change: dict[str, Any]) -> None:
        try:
            await self._api.send("PATCH", path, {"status": change}, kind=MERGE_PATCH)
        except ApiRefused as error:
            if error.status != _GONE:
                raise


def pod_for(share: kubernetes.RawObject) -> dict[str, Any]:
    """Return the pod that a SharePod asks for."""
    meta = share.metadata
    # The service account that creates the pod may write grants; a user's SharePod must not use that.
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
    """Replace a node's name by a condition: a pod with a node bypasses the scheduler, and gets no GPU."""
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


def _status_of(pod: kubernetes.RawObject) -> dict[str, Any]:
    """Return the status that KubeShare has for a pod."""
    meta = {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid}
    status: dict[str, Any] = {"podStatus": _decoded(pod.status), "podObjectMeta": meta}
    text = (pod.metadata.annotations or {}).get(names.GRANT)
    if text is not None:
        try:
            grant = decode_grant(text)
        except BadFormat:
            return status
        gpus = {share.gpu: None for shares in grant.containers.values() for share in shares}
        status["boundDeviceID"] = ",".join(gpus)
    return status


def _change(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merge patch of the keys that differ; it removes keys that are gone, also one level down."""
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


def _phase(share: kubernetes.RawObject) -> str:
    status: dict[str, Any] = _decoded(share.status).get("podStatus") or {}
    return str(status.get("phase", ""))


def _why(error: ApiRefused) -> str:
    if error.status == _CONFLICT:
        return "a pod of this name already exists"
    return error.message.partition(f": {error.status} ")[2] or error.message


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    return msgspec.json.decode(raw, type=dict[str, Any] | None) or {}


def _key(each: kubernetes.RawObject) -> Key:
    return each.metadata.namespace, each.metadata.name
