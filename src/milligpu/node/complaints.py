"""When a container may not start: an event on its pod, and in the end an eviction, so that it is placed anew."""

from collections.abc import Callable, Sequence

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

log = structlog.get_logger()


class Complaints:
    """Tells each pod once per fault."""

    def __init__(self, api: Api, node: str, now: Callable[[], float], evict_after: float) -> None:
        self._api = api
        self._evict_after = evict_after
        self._reporter = ("milligpu.dev/agent", node)
        self._now = now
        self._since: dict[str, tuple[Fault, float]] = {}
        self._told: set[tuple[str, Fault]] = set()
        self._evicted: set[str] = set()

    async def tell(self, refused: Sequence[Refused], pods: dict[str, PodView]) -> None:
        """Look at everybody who is refused now; who no longer is has nothing held against him."""
        names = {each.name for each in refused}
        self._since = {name: seen for name, seen in self._since.items() if name in names}
        for each in refused:
            fault, since = self._since.get(each.name, (each.problem.fault, self._now()))
            if fault is not each.problem.fault:
                since = self._now()
            self._since[each.name] = (each.problem.fault, since)
            pod = pods.get(each.holder.uid)
            if pod is not None:
                await self._act(each, pod, self._now() - since)

    async def _act(self, refused: Refused, pod: PodView, waited_s: float) -> None:
        fault = refused.problem.fault
        try:
            if waited_s >= _PATIENCE_S and (pod.uid, fault) not in self._told:
                note = f"container {refused.holder.container}: {refused.problem.message}; {_HELP[fault]}"
                where, body = pod_event(
                    (pod.namespace, pod.name, pod.uid), fault, "Attach", note, reporter=self._reporter
                )
                await self._api.send("POST", where, body)
                self._told.add((pod.uid, fault))
                log.warning("a container may not start", pod=f"{pod.namespace}/{pod.name}", why=note)
            if waited_s >= self._evict_after and pod.owned and pod.uid not in self._evicted:
                await self._evict(pod)
        except Unavailable as error:
            log.info("the API server did not take it", error=error.message)

    async def _evict(self, pod: PodView) -> None:
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
