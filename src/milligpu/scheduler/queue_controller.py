"""Queues in the leader: a pod's gate is removed when its turn has come and a place is reserved for it.

All decisions are made by `queues.cluster_lines` from the cluster state. What users had of late is written into the
status of their queue, so that it survives a restart. Without queues, and without pods of queues, nothing is done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import structlog

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.preemption import PreemptionRule
from milligpu.cluster.state import ClusterState
from milligpu.kube.api import JSON_PATCH, METADATA_ONLY, STRATEGIC_PATCH, ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.kube.watch import Followed, follow_all
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu_queue import NO_QUEUES, GpuQueues
from milligpu.model.reasons import EventReason, QueueReason
from milligpu.queues.cluster_lines import ClusterLines, QueueMemory, is_protected
from milligpu.queues.reclaim import reclaims
from milligpu.queues.standing import describe_stray, standings
from milligpu.queues.usage import DecayedUsage
from milligpu.scheduler.queue_status import QueueStatusWriter
from milligpu.wire.gpu_queue import queues_of_objects, usages_of_object
from milligpu.wire.kubernetes import KubeGpuQueue

# Pods that come together are decided about together; a lone pod is not delayed by more than this.
PASS_S = 0.05
# As many as keep the API server busy together with the binds.
IN_FLIGHT = 16
# Positions change all the time. A pod hears of a new reason at once, and of a new position after this long.
_AGAIN_S = 60.0
# At a rate that leaves the API server to the binds.
_EVERY_S = 0.05
# A gate that could not be removed is tried again after this long.
_RETRY_S = 1.0
_TOPIC = "queue"

log = structlog.get_logger()


class QueueController:
    """Follows the queues, admits their pods, and says where the others stand."""

    def __init__(
        self,
        api: ApiClient,
        queues: Followed[KubeGpuQueue],
        state: ClusterState,
        events: EventRecorder,
        valid: Callable[[], bool],
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        on_listed: Callable[[], None],
    ) -> None:
        """`now` measures durations; `clock` is in seconds since 1970. `on_listed` is called for each list."""
        self._api = api
        self._watch = queues
        self._state = state
        self._events = events
        self._valid = valid
        self._now = now
        self._clock = clock
        self._on_listed = on_listed
        self.queues: GpuQueues = NO_QUEUES
        self._problems: dict[str, str] = {}
        self._memory = QueueMemory({}, {}, set())
        self._status = QueueStatusWriter(api, clock)
        self._view: ClusterLines | None = None
        self._wake = asyncio.Event()
        self._looked_at = (-1, -1)
        self._patches: set[asyncio.Task[None]] = set()
        self._admitting: set[str] = set()
        self._said: dict[str, tuple[QueueReason, str, float]] = {}
        state.is_protected = self._is_protected

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do: no queue, and no pod of one."""
        return not len(self.queues) and not self._problems and not self._state.pods.in_queues

    def on_change(self) -> None:
        """Start a pass if pods or capacity changed since the last one."""
        versions = self._state.pods.waiting_version, self._state.pods.capacity_version
        if not self.idle and self._looked_at != versions:
            self._wake.set()

    def on_tick(self) -> None:
        """Start a pass, because reservations may have expired."""
        if not self.idle:
            self._state.reservations.retry_admitted()
            self._wake.set()

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._said.pop(uid, None)

    def _is_protected(self, entry: PodEntry) -> bool:
        return is_protected(self.queues, entry, self._clock())

    async def follow(self) -> None:
        """Follow the queues, until cancelled."""
        async for objects in follow_all(self._watch):
            self._learn(objects)
            self._on_listed()

    def _learn(self, objects: list[KubeGpuQueue]) -> None:
        for each in objects:
            for user, (milli, at) in usages_of_object(each).items():
                key = each.metadata.name, user
                self._memory.usages.setdefault(key, DecayedUsage(milli, at))
        queues, self._problems = queues_of_objects(objects)
        if queues != self.queues:
            self.queues = queues
            self._memory.openings.clear()
            self._memory.refused.clear()
            self._wake.set()
        self._status.learn(objects, self._problems)

    async def run(self) -> None:
        """Admit pods and write what was decided, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._say_positions())
            tasks.create_task(self._status.run())
            while True:
                await self._wake.wait()
                self._wake.clear()
                if not self.idle:
                    await self._pass()
                    await asyncio.sleep(PASS_S)

    async def _pass(self) -> None:
        pods = self._state.pods
        self._looked_at = pods.waiting_version, pods.capacity_version
        self._view = view = ClusterLines(self._state, self.queues, self._memory, self._clock())
        for _ in view.admit():
            pass
        self._status.put(view)
        # Places that evicted pods left are reserved elsewhere; a gate whose removal had no answer is tried again.
        ready = [each for each in pods.in_queues.values() if each.queued and each.stage is PodStage.RESERVED]
        for entry in ready:
            if entry.spec.pod.uid in self._admitting:
                continue
            self._admitting.add(entry.spec.pod.uid)
            while len(self._patches) >= IN_FLIGHT:
                await asyncio.wait(self._patches, return_when=asyncio.FIRST_COMPLETED)
            self._start(self._admit(entry))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._patches.add(task)
        task.add_done_callback(self._patches.discard)

    def reclaims(self) -> list[tuple[list[PodEntry], PreemptionRule]]:
        """The first pods of queues that want what they lent, and which pods may be evicted for each."""
        return [] if self._view is None or self.idle else reclaims(self._state, self._view)

    # -- admission ---------------------------------------------------------------------------------------------

    async def _admit(self, entry: PodEntry) -> None:
        """Write the place of a pod as a nomination, and remove its gate."""
        pod, node = entry.spec.pod, entry.node
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        message = f"its turn has come; a place on {node} is reserved"
        gate = "/spec/schedulingGates/0"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": f"{gate}/name", "value": names.QUEUE},
            {"op": "remove", "path": gate},
        ]
        try:
            if not self._valid():
                return
            # kube-scheduler takes a nominated node without comparing it with others.
            nominated = node if self._state.is_nominable(entry.spec) else None
            await self._write_condition(entry, QueueReason.ADMITTED, message, node=nominated)
            entry.nominated_here = nominated or ""
            if entry.stage is PodStage.RESERVED and entry.node == node and self._valid():
                await self._api.send("PATCH", path, patch, kind=JSON_PATCH, accept=METADATA_ONLY)
                log.info("Admitted pod", pod=str(pod), queue=entry.spec.queue, node=node, uid=pod.uid)
        except ApiRefused as error:
            log.info("Could not admit pod", pod=str(pod), queue=entry.spec.queue, error=error.message)
            self._state.reservations.put_back(entry)
        except Unavailable as error:
            # The gate may be gone all the same. The place is kept until the watch shows it, or its time is over.
            log.info("No answer to admission of pod", pod=str(pod), queue=entry.spec.queue, error=error.message)
            await asyncio.sleep(_RETRY_S)
        finally:
            self._admitting.discard(pod.uid)

    # -- positions ---------------------------------------------------------------------------------------------

    async def _say_positions(self) -> None:
        """Write where pods stand into their conditions and events: sparingly, the first of each queue first."""
        while True:
            await asyncio.sleep(_RETRY_S)
            view = self._view
            if view is None or self.idle:
                continue
            for entry in view.stray:
                reason = QueueReason.BAD_REQUEST if entry.spec.request is None else QueueReason.GONE
                await self._say(entry, reason, describe_stray(entry, self._problem(entry)))
            for queue in view.lines.queues.leaves:
                for each in standings(view.lines, view.admission, queue, self._clock()):
                    entry = self._state.entry(each.pod.name)
                    if entry is not None and self._due(entry, each.reason):
                        await self._say(entry, each.reason, each.message)
                if self._view is not view:
                    break

    def _problem(self, entry: PodEntry) -> str:
        below = ", ".join(each.name for each in self.queues.children(entry.spec.queue))
        return f"pods go to the queues below it ({below})" if below else self._problems.get(entry.spec.queue, "")

    def _due(self, entry: PodEntry, reason: QueueReason) -> bool:
        said = self._said.get(entry.spec.pod.uid)
        return said is None or said[0] is not reason or self._now() - said[2] >= _AGAIN_S

    async def _say(self, entry: PodEntry, reason: QueueReason, message: str) -> None:
        uid = entry.spec.pod.uid
        said = self._said.get(uid)
        same = said is not None and said[:2] == (reason, message)
        if same or not self._due(entry, reason) or not entry.queued or entry.stage is not PodStage.WAITING:
            return
        try:
            await self._write_condition(entry, reason, message)
        except Unavailable as error:
            log.info("Could not write condition of pod", pod=str(entry.spec.pod), error=error.message)
            return
        if self._state.entry(uid) is not entry:
            return  # the pod has ended meanwhile
        self._said[uid] = reason, message, self._now()
        which = EventReason.QUEUE_GONE if reason is QueueReason.GONE else EventReason.QUEUED
        event = PodEvent(entry.spec.pod, which, "Queueing", message, normal=which is EventReason.QUEUED)
        self._events.record(event, topic=_TOPIC, again_s=_AGAIN_S)
        await asyncio.sleep(_EVERY_S)

    async def _write_condition(
        self, entry: PodEntry, reason: QueueReason, message: str, *, node: str | None = None
    ) -> None:
        pod, waits = entry.spec.pod, reason is not QueueReason.ADMITTED
        said = self._said.get(pod.uid)
        condition = {
            "type": names.QUEUED,
            "status": str(waits),
            "reason": str(reason),
            "message": message,
        }
        if said is None or not waits:
            condition["lastTransitionTime"] = f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%dT%H:%M:%SZ}"
        status: dict[str, object] = {"conditions": [condition]}
        if node is not None:
            status["nominatedNodeName"] = node
        await self._api.send(
            "PATCH",
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status",
            {"metadata": {"uid": pod.uid}, "status": status},
            kind=STRATEGIC_PATCH,
            accept=METADATA_ONLY,
        )
