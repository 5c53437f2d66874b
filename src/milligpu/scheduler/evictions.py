"""Evicts pods whose container a node's agent has refused for long, so that their controllers create others.

Agents cannot evict: a stolen token of one node must not end pods of another. An agent names the pods in an
annotation of its own Node object (`wire/evictions.py`), which an admission policy lets nobody else write. The
leader evicts those that are on that node, request GPUs and have a controller.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from milligpu.dialects.pod import containers, device_limits
from milligpu.kube.api import METADATA_ONLY, ApiClient, ApiRefused
from milligpu.kube.backoff import Backoff
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest, Unavailable
from milligpu.wait import wait_for_event
from milligpu.wire.evictions import EvictionRequest, decode_evictions
from milligpu.wire.kubernetes import KubePod, decode_pod

# A disruption budget refuses for as long as another pod needs to start: seconds at first, but it may be hours.
_FIRST_S, _MOST_S = 1.0, 120.0
_LOOK_S = 1.0
# A node that names hundreds of pods must not keep the API server from the binds.
_EVERY_S = 0.02
_NOT_FOUND, _CONFLICT = 404, 409
_ENDED = frozenset({"Succeeded", "Failed"})
_COUNTED = frozenset({names.VGPU, names.WHOLE_GPU})

log = structlog.get_logger()


class _Spec(msgspec.Struct):
    nodeName: str = ""


def reason_to_keep(pod: KubePod, request: EvictionRequest, node: str) -> str:
    """Say why a pod that a node's agent named is not evicted; empty if it is."""
    meta = pod.metadata
    if meta.uid != request.pod.uid:
        return "it is gone, and another pod has its name"
    if msgspec.json.decode(pod.spec, type=_Spec).nodeName != node:
        return "it is not on this node"
    if meta.deletionTimestamp is not None or pod.status.phase in _ENDED:
        return "it ends already"
    if not any(owner.controller for owner in meta.ownerReferences or ()):
        return "it has no controller that would create another"
    return "" if _requests_gpus(pod) else "it requests no GPU"


def _requests_gpus(pod: KubePod) -> bool:
    try:
        return any(_COUNTED & device_limits(name, each).keys() for name, _, each in containers(pod.as_dict()))
    except BadRequest:
        return False


@dataclass(slots=True)
class _Attempt:
    """One eviction, until it is done or its node's agent no longer asks for it."""

    request: EvictionRequest
    due: float
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_S, _MOST_S))
    done: bool = False


class Evictions:
    """The evictions that nodes ask for, by node and pod uid."""

    def __init__(self, api: ApiClient, valid: Callable[[], bool], now: Callable[[], float]) -> None:
        """`valid` says whether this instance still leads."""
        self._api = api
        self._valid = valid
        self._now = now
        self._texts: dict[str, str] = {}
        self._attempts: dict[str, dict[str, _Attempt]] = {}
        self._news = asyncio.Event()

    def put(self, node: str, text: str | None) -> None:
        """Take over what a node's annotation says now; an unreadable one asks for nothing."""
        if self._texts.get(node, "") == (text or ""):
            return
        if not text:
            self.drop(node)
            return
        self._texts[node] = text
        try:
            requests = decode_evictions(text)
        except BadFormat as error:
            log.warning("Could not read eviction requests", node=node, error=error.message)
            requests = ()
        before = self._attempts.get(node, {})
        self._attempts[node] = {
            each.pod.uid: before.get(each.pod.uid) or _Attempt(each, self._now()) for each in requests
        }
        self._news.set()

    def drop(self, node: str) -> None:
        """Forget a node that asks for nothing, or is gone."""
        self._texts.pop(node, None)
        self._attempts.pop(node, None)

    async def run(self) -> None:
        """Evict, until cancelled."""
        while True:
            self._news.clear()
            for node, attempt in self._due():
                await self._try(node, attempt)
                await asyncio.sleep(_EVERY_S)
            if any(not each.done for attempts in self._attempts.values() for each in attempts.values()):
                await wait_for_event(self._news, _LOOK_S)
            else:
                await self._news.wait()

    def _due(self) -> list[tuple[str, _Attempt]]:
        now = self._now()
        return [
            (node, each)
            for node, attempts in self._attempts.items()
            for each in attempts.values()
            if not each.done and each.due <= now
        ]

    async def _try(self, node: str, attempt: _Attempt) -> None:
        request = attempt.request
        try:
            attempt.done = await self._evict(node, request)
        except ApiRefused as error:
            if error.status in {_NOT_FOUND, _CONFLICT}:
                attempt.done = True  # the pod is gone, or another one has its name
                return
            self._later(attempt, error)
        except Unavailable as error:
            self._later(attempt, error)

    def _later(self, attempt: _Attempt, error: Unavailable) -> None:
        wait_s = attempt.backoff.after(error)
        attempt.due = self._now() + wait_s
        pod = str(attempt.request.pod)
        log.info("Could not evict pod, trying again", pod=pod, again_s=round(wait_s, 1), error=error.message)

    async def _evict(self, node: str, request: EvictionRequest) -> bool:
        """Evict one pod; return whether the request is settled, by an eviction or because the pod is to be kept."""
        pod = request.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        kept = reason_to_keep(decode_pod(await self._api.get(path)), request, node)
        if kept:
            log.info("Kept pod that a node asked to evict", pod=str(pod), node=node, why=kept, uid=pod.uid)
            return True
        if not self._valid():
            return False
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        await self._api.send("POST", f"{path}/eviction", body, accept=METADATA_ONLY)
        log.warning("Evicted pod", pod=str(pod), node=node, reason=request.reason, uid=pod.uid)
        return True
