"""The queues of a cluster: who waits, who holds what, and which pods get their turn now, from the cluster state.

A pod waits in its queue while the queue's gate is its only scheduling gate. From the moment in which its turn has
come it counts as holding its share, whether or not it is bound yet. Pods of groups wait here, too, if they are in
no queue.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_queue import NO_QUEUE, GpuQueue, GpuQueues, QueueOrder
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray
from milligpu.queues.admit import Admission, Started
from milligpu.queues.opening import Opening
from milligpu.queues.order import FOREVER, QueuedPod, WaitingLines
from milligpu.queues.places import PlaceFinder
from milligpu.queues.usage import HALF_LIFE_S, DecayedUsage

# A million pods are seen in less than a second of this.
_APART_S = 1e-6

UserKey = tuple[str, str]
"""A queue and a user of it."""


def user_of(entry: PodEntry) -> str:
    """Who a pod counts for; its namespace where admission did not write the user."""
    return entry.spec.user or f"namespace:{entry.spec.pod.namespace}"


def queue_of(entry: PodEntry) -> str:
    """Where a pod waits for its turn."""
    return entry.spec.queue or NO_QUEUE


def is_in_line(entry: PodEntry) -> bool:
    """Whether a pod waits for its turn; one of a group also if it lost its place after its gate was removed."""
    return entry.stage is PodStage.WAITING and (entry.queued or (entry.spec.group is not None and not entry.gated))


def is_protected(queues: GpuQueues, entry: PodEntry, now: float) -> bool:
    """Whether a pod has run for less than its queue grants to each of its pods."""
    if entry.spec.queue not in queues:
        return False
    least = queues[entry.spec.queue].minimum_runtime_s
    return least > 0 and now < entry.started + least


def charge_of(placer: Placer, request: PodRequest) -> tuple[Milli, Mib]:
    """What a request counts against quotas: of each GPU the larger part of compute and memory.

    GPUs differ, so it is counted on the kind of GPU where it takes least.
    """
    with suppress(BadRequest):
        spec, kinds = placer.spec(request), placer.snapshot.kinds
        found = [
            (
                sum(min(kind.milli, max(d.milli, -(-d.mib * kind.milli // kind.mib))) for d in need.demands),
                sum(d.mib for d in need.demands),
            )
            for need, kind in zip(spec.needs, kinds, strict=False)
            if need.reason is None and kind.mib
        ]
        if found:
            milli, mib = min(found)
            return Milli(milli), Mib(mib)
    shares = [each.share for each in request.containers if each.share is not None]
    return (
        Milli(sum(each.count * (each.milli or 0) for each in shares)),
        Mib(sum(each.count * (each.mib or 0) for each in shares)),
    )


def queued_pod(state: ClusterState, entry: PodEntry) -> QueuedPod | None:
    """The pod as queues see it; None if its request is invalid."""
    spec = entry.spec
    if spec.request is None:
        return None
    milli, mib = charge_of(state.placer, spec.request)
    # Kubernetes counts whole seconds; within one, pods are in the order in which they were first seen.
    arrived = entry.created + entry.number * _APART_S
    group = spec.group_key
    return QueuedPod(
        spec.request,
        queue_of(entry),
        user_of(entry),
        arrived,
        milli,
        mib,
        spec.time_limit_s,
        shape=spec.shape,
        succeeded=0 if group is None else state.pods.succeeded_since(group, entry.created),
    )


@dataclass(slots=True)
class QueueMemory:
    """What outlives one pass: what users had of late, and the rooms that are kept."""

    usages: dict[UserKey, DecayedUsage]
    openings: dict[str, Opening]
    refused: set[tuple[object, float]]
    capacity_version: int = -1
    rows_version: int = -1


class ClusterPlaces(PlaceFinder):
    """Places pods by all of their conditions, and reserves what is chosen."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state.placer)
        self._state = state

    def place(self, pod: QueuedPod) -> Grant | None:
        entry = self._state.pods[pod.name]
        with suppress(BadRequest):
            return self._state.reservations.find_among(entry.spec, self.rows(pod))
        return None

    def hold(self, pod: QueuedPod, grant: Grant) -> None:
        self._state.reservations.admit(self._state.pods[pod.name], grant)

    def rows(self, pod: QueuedPod) -> BoolArray | None:
        return self._state.nodes.mask(self._state.pods[pod.name].spec.constraints)


class PodEnds(MutableMapping[str, float]):
    """The latest end of every pod that holds a GPU, read from the cluster state when it is asked for."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self._state = state
        self._now = now
        self._new: dict[str, float] = {}

    def __getitem__(self, uid: str) -> float:
        if uid in self._new:
            return self._new[uid]
        entry = self._state.entry(uid)
        if entry is None or entry.stage is PodStage.WAITING:
            raise KeyError(uid)
        # A pod that is not running yet has all of its time before it; one that is overdue ends any moment.
        return max(self._now, min(entry.ends, self._now + entry.spec.time_limit_s))

    def __setitem__(self, uid: str, end: float) -> None:
        self._new[uid] = end

    def __delitem__(self, uid: str) -> None:
        del self._new[uid]

    def __iter__(self) -> Iterator[str]:
        return (each.spec.pod.uid for each in self._state.pods if each.stage is not PodStage.WAITING)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ClusterLines:
    """All queues at one moment; made again for every pass, so that nothing can drift from the cluster."""

    def __init__(self, state: ClusterState, queues: GpuQueues, memory: QueueMemory, now: float) -> None:
        """`now` is in seconds since 1970, because usage survives restarts."""
        self._state = state
        self._now = now
        self.memory = memory
        if any(not each.spec.queue for each in state.pods.in_queues.values()):
            queues = queues.with_queue(GpuQueue(NO_QUEUE, order=QueueOrder.FIFO))
        self.lines = WaitingLines(queues)
        self.stray: list[PodEntry] = []
        """Pods that wait for a queue that does not exist or takes no pods, and pods whose request is invalid."""
        leaves = {each.name for each in queues.leaves}
        held: dict[UserKey, int] = {}
        waiting: list[QueuedPod] = []
        for entry in state.pods.in_queues.values():
            pod = queued_pod(state, entry) if queue_of(entry) in leaves else None
            if pod is None:
                if is_in_line(entry):
                    self.stray.append(entry)
                continue
            if is_in_line(entry):
                waiting.append(pod)
            elif entry.stage is not PodStage.WAITING or not entry.gated:
                self._count(pod, held)
        for pod in sorted(waiting, key=lambda each: each.arrived):
            self.lines.add(pod)
        self._set_usages(leaves, held)
        self.admission: Admission = self._admission()

    def _count(self, pod: QueuedPod, held: dict[UserKey, int]) -> None:
        self.lines.count(pod, 1)
        key = pod.queue, pod.user
        held[key] = held.get(key, 0) + pod.milli

    def _set_usages(self, leaves: set[str], held: Mapping[UserKey, int]) -> None:
        """Average what users held since the last pass, and note what they hold now."""
        for key in {*self.memory.usages, *held}:
            if key[0] not in leaves:
                self.memory.usages.pop(key, None)
                continue
            before = self.memory.usages.get(key, DecayedUsage(at=self._now))
            then = before.until(self._now, HALF_LIFE_S)
            self.memory.usages[key] = DecayedUsage(then.average, then.at, held.get(key, 0))
            self.lines.state[key[0]].users[key[1]] = self.memory.usages[key]

    def _admission(self) -> Admission:
        state, memory = self._state, self.memory
        snap = state.placer.snapshot
        if memory.rows_version != snap.rows_version:
            memory.openings.clear()
        if memory.capacity_version != state.pods.capacity_version or memory.rows_version != snap.rows_version:
            memory.refused.clear()
        free = int(np.maximum(snap.offered, 0).sum())
        found = Admission(
            state.placer, self.lines, free, places=ClusterPlaces(state), ends=PodEnds(state, self._now)
        )
        found.openings, found.refused = memory.openings, memory.refused
        return found

    def admit(self) -> Iterator[tuple[PodEntry, Started]]:
        """Reserve places for all pods whose turn has come."""
        for started in self.admission.start(self._now):
            yield self._state.pods[started.pod.name], started
        self.memory.openings = self.admission.openings
        self.memory.capacity_version = self._state.pods.capacity_version
        self.memory.rows_version = self._state.placer.snapshot.rows_version


def latest_start(opening: Opening | None) -> float | None:
    """When a pod starts at the latest, in seconds since 1970; None where nobody can say."""
    return None if opening is None or opening.at == FOREVER else opening.at
