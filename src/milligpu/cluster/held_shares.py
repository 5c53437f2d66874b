"""What pods hold of each GPU, in the snapshot from which places are chosen.

A bound pod holds what its grant says, even beyond the GPU's capacity, because the pod is there. A reservation is
counted in the same way, and dropped if a bound pod needs the room.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from milligpu.cluster.plain_pods import PlainPods
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.pod_table import PodTable
from milligpu.model.footprint import grant_demands, larger_demand
from milligpu.model.gpu import Node
from milligpu.model.grant import GpuShare, Grant, grant_of_unknown_size
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray, Holding

RESERVATIONS = frozenset({PodStage.NOMINATED, PodStage.RESERVED})


class HeldShares:
    """Counts and releases what pods hold, keeps the nodes' rows, and knows which nodes are in use."""

    def __init__(self, placer: Placer, pods: PodTable, plain: PlainPods) -> None:
        self._placer = placer
        self._plain = plain
        self._snap = placer.snapshot
        self._pods = pods
        self._on_node: dict[str, set[str]] = {}
        self.nominated: dict[str, PodEntry] = {}
        """The pods with a nomination, the oldest first."""
        self._used: BoolArray = np.zeros(0, np.bool_)
        self._used_version = -1

    # -- nodes -------------------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> bool:
        """Add or update a node's GPUs; False if nothing changed."""
        old = self._snap.nodes.get(node.name)
        if old == node:
            return False
        if old is not None and _same_but_states(old, node):
            self._set_states(node)
        else:
            self._rebuild(node)
        return True

    def drop_node(self, name: str) -> None:
        if name in self._snap.nodes:
            self._drop_reservations(name)
            self._snap.remove(name)

    def _set_states(self, node: Node) -> None:
        for gpu in node.gpus:
            if self._snap.state(node.name, gpu.uuid) is not gpu.state:
                self._snap.set_state(node.name, gpu.uuid, gpu.state)
        self._snap.nodes[node.name] = node

    def _rebuild(self, node: Node) -> None:
        self.drop_node(node.name)
        self._snap.add(node)
        self._plain.count_again(node.name)
        for entry in self._entries_on(node.name):
            self._count(entry)

    def _entries_on(self, node: str) -> Iterator[PodEntry]:
        for uid in sorted(self._on_node.get(node, ())):
            yield self._pods[uid]

    # -- pods --------------------------------------------------------------------------------------------------

    def reserve(self, entry: PodEntry, grant: Grant, stage: PodStage, until: float) -> None:
        """Count a place that is kept for a waiting pod."""
        assert entry.spec.request is not None
        self._placer.commit(entry.spec.request, grant)
        self._pods.set_placed(entry)
        entry.stage, entry.grant, entry.node, entry.until = stage, grant, grant.node, until
        self._on_node.setdefault(grant.node, set()).add(grant.uid)
        self._mark_use(grant.node)

    def bind(self, entry: PodEntry, node: str, stage: PodStage) -> None:
        """Count what a pod holds by its grant; the pod held nothing."""
        self._pods.set_placed(entry)
        entry.stage, entry.node, entry.until = stage, node, FOREVER
        self._on_node.setdefault(node, set()).add(entry.spec.pod.uid)
        self._count(entry)

    def release(self, entry: PodEntry) -> None:
        """Release what a pod holds or keeps; then it waits."""
        uid = entry.spec.pod.uid
        self.nominated.pop(uid, None)
        if entry.node:
            self._on_node[entry.node].discard(uid)
            if not self._on_node[entry.node]:
                del self._on_node[entry.node]
        if uid in self._snap.holdings:
            self._placer.release(uid)
            self._mark_use(entry.node)
            self._pods.capacity_version += 1
        self._pods.waiting_version += entry.stage is not PodStage.WAITING
        entry.stage, entry.grant, entry.node, entry.until = PodStage.WAITING, None, "", FOREVER
        entry.next_grant = entry.unreadable = None
        self._pods.set_waiting(entry)

    def update(self, entry: PodEntry) -> None:
        """Count again what a bound pod holds, because its grants changed."""
        if entry.spec.pod.uid in self._snap.holdings:
            self._placer.release(entry.spec.pod.uid)
        self._count(entry)
        self._pods.capacity_version += 1

    def _count(self, entry: PodEntry) -> None:
        if entry.node in self._snap.nodes and entry.spec.pod.uid not in self._snap.holdings:
            holding = self.holding(entry, entry.grant)
            if entry.next_grant is not None:
                holding = _both(holding, self.holding(entry, entry.next_grant))
            self._snap.take(holding, force=True)
            self._mark_use(entry.node)

    def holding(self, entry: PodEntry, grant: Grant | None) -> Holding:
        """Return what a pod on its node would hold with this grant."""
        request = entry.spec.request
        if entry.unreadable is not None:
            present = [gpu.uuid for gpu in self._snap.nodes[entry.node].gpus]
            grant = grant_of_unknown_size(entry.spec.pod.uid, entry.node, entry.unreadable.named, present)
        shares = dict[str, tuple[GpuShare, ...]]() if grant is None else grant.containers
        kinds = {} if request is None else {each.name: each.kind for each in request.containers}
        gpus = {gpu.uuid: gpu for gpu in self._snap.nodes[entry.node].gpus}
        # A GPU that the node no longer reports cannot be given to another pod either.
        peaks = tuple((gpu, peak) for gpu, peak in grant_demands(shares, kinds, gpus).items() if gpu in gpus)
        if request is None:
            return Holding(entry.spec.pod.uid, entry.node, peaks)
        return Holding(
            entry.spec.pod.uid,
            entry.node,
            peaks,
            request.cpu_milli,
            request.memory_mib,
            request.locality,
            request.priority,
        )

    # -- reservations that must go -----------------------------------------------------------------------------

    def _drop_reservations(self, name: str) -> None:
        """Drop the reservations on a node that changed; kube-scheduler will ask about these pods again."""
        for entry in self._entries_on(name):
            if entry.stage in RESERVATIONS:
                self.release(entry)

    def drop_reservations_beyond_capacity(self, node: str) -> None:
        """Drop reservations where a bound pod takes more than was free."""
        for stage in (PodStage.NOMINATED, PodStage.RESERVED):
            for entry in self._entries_on(node):
                if entry.stage is stage:
                    if not self._overcommitted(node):
                        return
                    self.release(entry)

    def _overcommitted(self, node: str) -> bool:
        rows = self._snap.rows_of.get(node, [])
        return bool((self._snap.milli[rows] < 0).any() or (self._snap.mib[rows] < 0).any())

    # -- nodes in use ------------------------------------------------------------------------------------------

    def in_use(self) -> BoolArray:
        """Return the rows of the nodes on which pods hold or keep shares."""
        if self._used_version != self._snap.rows_version:
            self._used_version = self._snap.rows_version
            self._used = self._snap.tenants.max(axis=1) > 0
        return self._used

    def _mark_use(self, node: str) -> None:
        """Update the mask of nodes in use; making it again for 5,000 nodes would cost as much as a decision."""
        if self._used_version == self._snap.rows_version:
            for row in self._snap.rows_of.get(node, ()):
                self._used[row] = self._snap.tenants[row].any()


def _both(a: Holding, b: Holding) -> Holding:
    """Return the larger demand of two grants of one pod on each GPU."""
    theirs = dict(b.demands)
    return replace(a, demands=tuple((gpu, larger_demand(demand, theirs[gpu])) for gpu, demand in a.demands))


def _same_but_states(old: Node, new: Node) -> bool:
    if (old.cpu_milli, old.memory_mib, len(old.gpus)) != (new.cpu_milli, new.memory_mib, len(new.gpus)):
        return False
    pairs = zip(old.gpus, new.gpus, strict=True)
    return all(replace(a, state=b.state, message=b.message) == b for a, b in pairs)
