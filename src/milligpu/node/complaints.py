"""When a container may not start: an event on its pod, and in the end an eviction, so that it is placed anew.

Telling is a task of its own: an API server that hangs keeps nobody waiting who may start.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from milligpu.kube.api import Api
from milligpu.kube.events import pod_event
from milligpu.model.errors import Unavailable
from milligpu.node.attach import PodView, Refused
from milligpu.node.checks import Fault

# A share that is just being given back, or a grant that is just being seen, needs no event.
_PATIENCE_S = 1.0

_HELP = {
    Fault.NO_GRANT: "let the pod be scheduled by a scheduler with milligpu's extender",
    Fault.BAD_GRANT: "delete the pod; its owner makes another",
    Fault.OTHER_POD: "delete the pod; its owner makes another",
    Fault.OTHER_NODE: "delete the pod; its owner makes another",
    Fault.NO_SHARE: "delete the pod; its owner makes another",
    Fault.UNKNOWN_GPU: "delete the pod, so that it is placed on a GPU that is there",
    Fault.UNFIT_GPU: "delete the pod, so that it is placed on another GPU",
    Fault.OVERCOMMIT: "it starts when those who hold the GPU have gone",
}

# How often those who still wait are looked at.
_LOOK_S = 0.5

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A container that may not start, since when, and its pod."""

    refused: Refused
    pod: PodView
    since: float


class Complaints:
    """Tells each pod once per fault."""

    def __init__(self, api: Api, node: str, now: Callable[[], float], evict_after: float) -> None:
        self._api = api
        self._evict_after = evict_after
        self._reporter = ("milligpu.dev/agent", node)
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._some = asyncio.Event()
        self._told: set[tuple[str, Fault]] = set()
        self._evicted: set[str] = set()

    def note(self, refused: Iterable[Refused], pods: Mapping[str, PodView]) -> None:
        """Who is refused now; who no longer is has nothing held against him."""
        found: dict[str, _Waiting] = {}
        for each in refused:
            pod, before = pods.get(each.holder.uid), self._waiting.get(each.name)
            same = before is not None and before.refused.problem.fault is each.problem.fault
            if pod is not None:
                found[each.name] = _Waiting(each, pod, before.since if before and same else self._now())
        self._waiting = found
        self._told = {(uid, fault) for uid, fault in self._told if uid in pods}
        self._evicted &= pods.keys()
        if found:
            self._some.set()

    async def run(self) -> None:
        """Tell them, until cancelled."""
        while True:
            await self._some.wait()
            for name in list(self._waiting):
                for act in (self._tell, self._evict):
                    each = self._waiting.get(name)  # it may have started while the API server took its time
                    if each is not None:
                        await self._try(act(each, self._now() - each.since))
            if not self._waiting:
                self._some.clear()
            await asyncio.sleep(_LOOK_S)

    @staticmethod
    async def _try(act: Coroutine[Any, Any, None]) -> None:
        try:
            await act
        except Unavailable as error:
            log.info("the API server did not take it", error=error.message)

    async def _tell(self, waiting: _Waiting, waited_s: float) -> None:
        refused, pod, fault = waiting.refused, waiting.pod, waiting.refused.problem.fault
        if waited_s < _PATIENCE_S or (pod.uid, fault) in self._told:
            return
        note = f"container {refused.holder.container}: {refused.problem.message}; {_HELP[fault]}"
        where, body = pod_event((pod.namespace, pod.name, pod.uid), fault, "Attach", note, reporter=self._reporter)
        await self._api.send("POST", where, body)
        self._told.add((pod.uid, fault))
        log.warning("a container may not start", pod=f"{pod.namespace}/{pod.name}", why=note)

    async def _evict(self, waiting: _Waiting, waited_s: float) -> None:
        pod = waiting.pod
        if waited_s < self._evict_after or not pod.owned or pod.uid in self._evicted:
            return
        where = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        await self._api.send("POST", where, body)
        self._evicted.add(pod.uid)
        log.warning("evicted", pod=f"{pod.namespace}/{pod.name}")
