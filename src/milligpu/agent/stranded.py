"""Pods that the kubelet will never start: they are marked as failed, so that their share is free.

If a node loses power after the container of a `restartPolicy: Never` pod was created and before it was started, the
kubelet takes the pod for one that has run, starts nothing, and reports it as Pending forever.

A share that a running container uses must never be freed. So all of this must be true, without a break, for
`CERTAIN_S`: the API server says that no container of the pod has run; the container runtime has a container that
was created and never started, no other container of the pod, and no sandbox in which it could start; the kernel has
no process of the pod; and the kubelet answers, so it had the time to do something about it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import structlog

from milligpu.agent.attach_plan import NodePod
from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, ApiClient
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.kubelet.runtime import RuntimePod, ask_about_pod
from milligpu.model.errors import Unavailable
from milligpu.model.reasons import EventReason

# The kubelet compares a pod with the runtime within seconds of a change there. Were it slower, the pod would fail
# although it might have started, but no share would be freed that is in use.
CERTAIN_S = 30.0
_LOOK_S = 5.0
_MESSAGE = (
    "The kubelet never starts this pod: the node or its container runtime died after the container was created and "
    "before it was started, and restartPolicy is Never. No container of it has run; its GPU share is free again"
)

log = structlog.get_logger()


class StrandedPods:
    """Finds stranded pods among those that hold a share of this node."""

    def __init__(
        self,
        api: ApiClient,
        events: EventRecorder,
        *,
        runtime: Path,
        pods: Callable[[], Mapping[str, NodePod]],
        holders: Callable[[], Collection[str]],
        running: Callable[[], Collection[str]],
        kubelet_answers: Callable[[], Awaitable[bool]],
        now: Callable[[], float],
    ) -> None:
        """`pods` are the node's, by UID; `holders` have a share here, and `running` processes."""
        self._api = api
        self._events = events
        self._runtime = runtime
        self._pods = pods
        self._holders = holders
        self._running = running
        self._kubelet_answers = kubelet_answers
        self._now = now
        self._since: dict[str, float] = {}
        self._marked: set[str] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled; without a suspect that costs nothing."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Look once."""
        pods = self._pods()
        # A report that the kubelet had begun before can make a marked pod Pending again.
        self._marked &= pods.keys()
        suspects = {
            uid: pods[uid] for uid in self._marked.union(self._holders()) if uid in pods and pods[uid].may_strand
        }
        if suspects and not await self._kubelet_answers():
            suspects.clear()
        found = [uid for uid in suspects if await self._never_starts(uid)]
        alive = set(self._running()) if found else set[str]()
        now = self._now()
        self._since = {uid: self._since.get(uid, now) for uid in found if uid not in alive}
        for uid, since in tuple(self._since.items()):
            if now - since >= CERTAIN_S or uid in self._marked:
                await self._fail(suspects[uid])

    async def _never_starts(self, uid: str) -> bool:
        try:
            pod: RuntimePod = await ask_about_pod(self._runtime, uid)
        except Unavailable as error:
            log.info("Could not ask the container runtime about a pod", uid=uid, error=error.message)
            return False
        return pod.never_starts

    async def _fail(self, pod: NodePod) -> None:
        ref = pod.ref
        status = {"phase": "Failed", "reason": str(EventReason.STRANDED), "message": _MESSAGE}
        path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}/status"
        body = {"metadata": {"uid": ref.uid}, "status": status}
        try:
            await self._api.send("PATCH", path, body, kind=MERGE_PATCH, accept=METADATA_ONLY)
        except Unavailable as error:
            log.warning("Could not mark stranded pod as failed", pod=str(ref), error=error.message)
            return
        del self._since[ref.uid]
        if ref.uid in self._marked:
            return
        self._marked.add(ref.uid)
        self._events.record(PodEvent(ref, EventReason.STRANDED, "Watch", _MESSAGE))
        log.warning("Marked stranded pod as failed", pod=str(ref), uid=ref.uid)
