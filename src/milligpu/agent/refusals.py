"""Events on pods whose container was refused, and the list of those that the scheduler shall evict.

This is a separate task, so that a slow API server delays no container that may start.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from milligpu.agent.attach_plan import NodePod, RefusedAttachment
from milligpu.agent.attachment import Attachment
from milligpu.agent.nvidia_cdi import unshareable
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.reasons import AttachReason, EventReason
from milligpu.wire.evictions import EvictionRequest

# A share that is just being released, or a grant that the watch has not shown yet, needs no event.
_PATIENCE_S = 1.0

_HELP = {
    AttachReason.NO_GRANT: "delete the pod, and let a scheduler that uses milligpu's extender bind it",
    AttachReason.BAD_GRANT: "delete the pod; its controller creates another",
    AttachReason.OTHER_POD: "delete the pod; its controller creates another",
    AttachReason.OTHER_NODE: "delete the pod; its controller creates another",
    AttachReason.NO_SHARE: "delete the pod; its controller creates another",
    AttachReason.UNKNOWN_GPU: "delete the pod, so that it is placed on another GPU",
    AttachReason.UNFIT_GPU: "delete the pod, so that it is placed on another GPU",
    AttachReason.DRIVER_NOT_READY: "the container starts when NVIDIA's container toolkit is complete on this node",
    AttachReason.OVERCOMMIT: "the container starts when other pods on this GPU end",
}

# How often refused attachments are checked.
_LOOK_S = 0.5

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A container that may not start, since when, and its pod."""

    refused: RefusedAttachment
    pod: NodePod
    since: float


class RefusalReporter:
    """Posts one event for each pod and reason, and lists the pods to evict."""

    def __init__(
        self, events: EventRecorder, now: Callable[[], float], evict_after: float, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when there are other pods to evict."""
        self._events = events
        self._evict_after = evict_after
        self._now = now
        self._changed = changed
        self._waiting: dict[str, _Waiting] = {}
        self._some = asyncio.Event()
        self.evictions: tuple[EvictionRequest, ...] = ()
        """The pods that the scheduler shall evict."""

    def update(self, refused: Iterable[RefusedAttachment], pods: Mapping[str, NodePod]) -> None:
        """Take over which attachments are refused now; those that no longer are, are dropped."""
        found: dict[str, _Waiting] = {}
        for each in refused:
            pod, before = pods.get(each.holder.uid), self._waiting.get(each.name)
            same = before is not None and before.refused.problem.reason is each.problem.reason
            if pod is not None:
                found[each.name] = _Waiting(each, pod, before.since if before and same else self._now())
        self._waiting = found
        self._events.keep(pods.keys())
        self._list_evictions()
        if found:
            self._some.set()

    def report_capabilities(self, attached: Attachment, pod: NodePod) -> None:
        """Post an event if a share lacks driver capabilities that its container asks for."""
        lacking = unshareable(pod.capabilities.get(attached.holder.container, ""))
        if attached.whole or not lacking:
            return
        message = (
            f"container {attached.holder.container}: a share of a GPU has no driver capability "
            f"{', '.join(lacking)}; ask for a whole GPU (nvidia.com/gpu: 1)"
        )
        event = PodEvent(pod.ref, EventReason.CAPABILITY_NOT_SHAREABLE, "Attach", message)
        self._events.record(event, topic=f"Capability {attached.holder.container}", again_s=math.inf)

    async def run(self) -> None:
        """Post events and list evictions, until cancelled."""
        while True:
            await self._some.wait()
            for each in self._waiting.values():
                self._report(each, self._now() - each.since)
            self._list_evictions()
            if not self._waiting:
                self._some.clear()
            await asyncio.sleep(_LOOK_S)

    def _report(self, waiting: _Waiting, waited_s: float) -> None:
        if waited_s < _PATIENCE_S:
            return
        refused, reason = waiting.refused, waiting.refused.problem.reason
        pod = waiting.pod.ref
        message = f"container {refused.holder.container}: {refused.problem.message}; {_HELP[reason]}"
        event = PodEvent(pod, EventReason(reason), "Attach", message)
        if self._events.record(event, topic=f"Attach {reason}", again_s=math.inf):
            log.warning("Refused container", pod=str(pod), reason=str(reason), message=message)

    def _list_evictions(self) -> None:
        """List the pods that have waited for long and that a controller replaces."""
        due = self._now() - self._evict_after
        found = {
            each.pod.ref.uid: EvictionRequest(each.pod.ref, str(each.refused.problem.reason))
            for each in self._waiting.values()
            if each.pod.owned and each.since <= due
        }
        wanted = tuple(found[uid] for uid in sorted(found))
        if wanted == self.evictions:
            return
        for each in wanted:
            if each not in self.evictions:
                log.warning("Asking for eviction", pod=str(each.pod), reason=each.reason, uid=each.pod.uid)
        self.evictions = wanted
        self._changed()
