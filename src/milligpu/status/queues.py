"""Queues and where pods stand in them: as `milligpu queue` and `milligpu explain` show it."""

import time
from typing import Any

from milligpu.cluster.explain_room import explain_group_room, explain_room
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.state import ClusterState
from milligpu.kube import fetch
from milligpu.kube.api import ApiRefused
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_queue import GpuQueue
from milligpu.queues.cluster_lines import ClusterLines, QueueMemory, is_in_line, is_protected, queue_of, user_of
from milligpu.queues.order import QueueState
from milligpu.queues.reclaim import reclaims
from milligpu.queues.standing import Standing, describe_stray, standings
from milligpu.queues.usage import DecayedUsage
from milligpu.status.queue_values import QueuedPodStatus, QueueStatus, QueueUserStatus
from milligpu.status.state import read_state
from milligpu.wire.gpu_queue import queues_of_objects, usages_of_object
from milligpu.wire.kubernetes import KubeGpuQueue

_FORBIDDEN = 403


class QueueOverview:
    """All queues, computed from the cluster as the scheduler service computes them."""

    def __init__(self, state: ClusterState, objects: list[KubeGpuQueue], now: float) -> None:
        self._state = state
        self._now = now
        self.queues, self.problems = queues_of_objects(objects)
        state.is_protected = lambda entry: is_protected(self.queues, entry, now)
        usages = {
            (each.metadata.name, user): DecayedUsage(milli, at)
            for each in objects
            for user, (milli, at) in usages_of_object(each).items()
        }
        self._view = ClusterLines(state, self.queues, QueueMemory(usages, {}, set()), now)
        self._names = [each.metadata.name for each in objects]
        self._statuses = [self._status(name) for name in self._names]
        self._users = self._user_statuses()
        self._admitted = {entry.spec.pod.uid for entry, _ in self._view.admit()}

    def statuses(self) -> list[QueueStatus]:
        """All queues by name."""
        return self._statuses

    def users(self) -> list[QueueUserStatus]:
        """The users of all queues, those who had most of late first."""
        return self._users

    def line(self, name: str) -> list[QueuedPodStatus]:
        """The waiting pods of a queue, in the order of their turns. Raises `BadRequest` for an unknown queue."""
        if name not in self.queues:
            raise BadRequest("QUEUE", name, f"one of {', '.join(self._names) or 'no queue exists'}")
        return [self._pod(each) for each in self._standings(self.queues[name])]

    def turns(self) -> dict[str, Standing]:
        """Where every pod stands that waits for its turn, by UID."""
        return {each.pod.name: each for queue in self._view.lines.queues.leaves for each in self._standings(queue)}

    def of_pods(self) -> dict[tuple[str, str], tuple[str, str]]:
        """The queue and the user of every pod that is in a queue, by namespace and pod."""
        return {
            (each.spec.pod.namespace, each.spec.pod.name): (each.spec.queue, user_of(each))
            for each in self._state.pods
            if each.spec.queue
        }

    def explain(self, uid: str) -> str:
        """Say where a pod stands, and why."""
        entry = self._state.entry(uid)
        if entry is None or (entry not in self._view.stray and uid not in self._admitted and not is_in_line(entry)):
            return (
                "the pod has other scheduling gates besides that of its queue; it is in line when they are removed"
            )
        if entry in self._view.stray:
            return describe_stray(entry, self.problems.get(entry.spec.queue, ""))
        if uid in self._admitted:
            return f"its turn has come: the scheduler will place it on {entry.node}"
        found = self._standings(self._view.lines.queues[queue_of(entry)])
        message = next(each.message for each in found if each.pod.name == uid)
        room = self._room(entry)
        return f"{message}; {room}" if room else message

    def _room(self, entry: PodEntry) -> str:
        """Say who would yield to a pod, or to its group, if it is the first of its queue."""
        for asking, rule in reclaims(self._state, self._view):
            if asking == [entry]:
                return explain_room(self._state, entry.spec, rule)
            if entry in asking:
                return explain_group_room(self._state, [each.spec for each in asking], rule)
        return ""

    def _standings(self, queue: GpuQueue) -> list[Standing]:
        return list(standings(self._view.lines, self._view.admission, queue, self._now))

    def _pod(self, each: Standing) -> QueuedPodStatus:
        pod = self._entry(each).spec.pod
        counts = int(each.pod.milli), int(each.pod.mib)
        return QueuedPodStatus(
            each.position, pod.namespace, pod.name, each.pod.user, *counts, str(each.reason), each.message
        )

    def _entry(self, each: Standing) -> PodEntry:
        return self._state.pods[each.pod.name]

    def _status(self, name: str) -> QueueStatus:
        if name not in self.queues:
            return QueueStatus(
                name, "", "", 0, None, None, 0, 0, 0, ready=False, problem=self.problems.get(name, "")
            )
        queue, held = self.queues[name], self._view.lines.state[name]
        return QueueStatus(
            name,
            queue.parent,
            str(queue.order),
            queue.weight,
            queue.guarantee.milli,
            queue.ceiling.milli,
            held.milli,
            held.mib,
            sum(len(line) for line in held.lines.values()),
            ready=True,
        )

    def _user_statuses(self) -> list[QueueUserStatus]:
        found: list[QueueUserStatus] = []
        for name in self._names:
            state = self._view.lines.state.get(name, QueueState())
            for user in sorted({*state.users, *state.lines}):
                usage = state.users.get(user, DecayedUsage(at=self._now)).until(self._now)
                waiting = len(state.lines.get(user, ()))
                found.append(QueueUserStatus(name, user, usage.held, round(usage.average, 1), waiting))
        return sorted(found, key=lambda each: (-each.average_milli, each.queue, each.user))


def read_overview(client: Any, state: ClusterState | None = None) -> QueueOverview:
    """Read all queues, and the cluster unless it was read before."""
    objects = fetch.list_queues(client)
    return QueueOverview(read_state(client) if state is None else state, objects, time.time())


def may_read_overview(client: Any, state: ClusterState) -> QueueOverview | None:
    """Read all queues; None if this user may not."""
    try:
        return read_overview(client, state)
    except ApiRefused as error:
        if error.status != _FORBIDDEN:
            raise
        return None
