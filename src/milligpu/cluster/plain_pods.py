"""Bound pods that request no GPU: most pods of a cluster. Only CPU and memory count, so little of them is kept.

If pods must leave a node so that another fits, these can be among them. Then they become entries as all others.
"""

from collections.abc import Set
from dataclasses import dataclass

from milligpu.model.request import PodRef
from milligpu.placement.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PlainPod:
    """A pod that requests no GPU, in numbers."""

    pod: PodRef
    node: str
    """Empty while the pod is not bound."""
    cpu_milli: int
    memory_mib: int
    priority: int
    ended: bool
    leaving: bool


class PlainPods:
    """Counts what they use of their nodes, in the snapshot from which places are chosen."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snap = snapshot
        self._pods: dict[str, PlainPod] = {}
        self._on_node: dict[str, dict[str, PlainPod]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, pod: PlainPod) -> bool:
        """Add or update a pod; one that ended uses nothing. Returns whether it may have released something."""
        if self._pods.get(pod.pod.uid) == pod:
            return False
        released = self.drop(pod.pod.uid)
        if pod.node and not pod.ended:
            self._pods[pod.pod.uid] = pod
            self._on_node.setdefault(pod.node, {})[pod.pod.uid] = pod
            self._snap.use(pod.node, pod.cpu_milli, pod.memory_mib)
        return released

    def drop(self, uid: str) -> bool:
        """Remove a pod; False if it is not known."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return False
        there = self._on_node[pod.node]
        del there[uid]
        if not there:
            del self._on_node[pod.node]
        self._snap.use(pod.node, -pod.cpu_milli, -pod.memory_mib)
        return True

    def missing_from(self, listed: Set[str]) -> list[str]:
        """Return the pods that are not in a list: only lists and watches tell of these pods, so they are gone."""
        return [uid for uid in self._pods if uid not in listed]

    def count_again(self, node: str) -> None:
        """Count the pods of a node that was added to the snapshot."""
        for pod in self._on_node.get(node, {}).values():
            self._snap.use(node, pod.cpu_milli, pod.memory_mib)

    def on_node(self, node: str) -> list[PlainPod]:
        return list(self._on_node.get(node, {}).values())
