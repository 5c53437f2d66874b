"""What is free on every GPU of the cluster, as arrays; each change is one small, exact update.

A row is the GPUs of one kind on one node, because everything a request asks for (its size on the GPU, the model,
the capability) is decided per kind. Nearly all nodes are one row; a node with two kinds of GPUs is two rows that
share its CPU and memory; a node without a GPU is one row without GPUs.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from milligpu.model.affinity import AffinityLabels
from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import LINK_KINDS, ComputeCapability, Gpu, GpuLink, GpuState, Node, SharingMode
from milligpu.model.policy import SharePolicy
from milligpu.model.units import Mib
from milligpu.model.versions import DottedVersion

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

RowState = tuple[int, int, bytes, bytes, bytes, bytes, bytes, bytes]
"""Everything in a row that a score may depend on, except which pods are there."""

UNCOUNTED = 1 << 40
"""CPU or memory of a node that states none: kube-scheduler counts it."""
NOBODY = -1
"""The exclusion of a GPU without pods; 0 is the exclusion of pods without the label."""
# Readers that are further behind than this start over, which then costs about the same.
_LOG_MAX = 1 << 14
POLICY_BITS = {policy: 1 << at for at, policy in enumerate(SharePolicy)}
ANY_POLICY = sum(POLICY_BITS.values())


@dataclass(frozen=True, slots=True)
class GpuKind:
    """The properties by which two GPUs are the same to a request, apart from what is free."""

    model: str
    mib: int
    milli: int
    reserved: int
    capability: ComputeCapability
    ecc: bool
    mode: SharingMode
    driver: DottedVersion | None = None
    cuda: DottedVersion | None = None

    @classmethod
    def of(cls, gpu: Gpu) -> "GpuKind":
        """The kind of a GPU."""
        size = (gpu.mib, gpu.milli, gpu.reserved)
        return cls(gpu.model, *size, gpu.capability, gpu.ecc, gpu.mode, gpu.driver, gpu.cuda)

    @property
    def usable(self) -> int:
        """The milli-GPU of an empty GPU that pods can get."""
        return self.milli - self.reserved

    @property
    def usable_mib(self) -> int:
        """The memory of an empty GPU that pods can get, in MiB."""
        return self.mib * self.usable // self.milli


NO_GPUS = GpuKind("", 1, 1, 1, ComputeCapability(0, 0), False, SharingMode.WHOLE)
"""The kind of a row without GPUs."""


@dataclass(frozen=True, slots=True)
class GpuTopology:
    """How the GPUs of one row are connected: the NUMA node of each, and how near each pair is."""

    numa: tuple[int, ...]
    nvlink: tuple[int, ...]
    """For each GPU the bits of those it has NVLink to."""
    ranks: tuple[tuple[int, ...], ...]
    """The rank of each pair's link; higher is nearer."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds: the GPUs with its peak on each, and the node's ordinary resources."""

    pod: str
    node: str
    demands: tuple[tuple[str, GpuDemand], ...]
    """UUID and amount."""
    cpu_milli: int = 0
    memory_mib: int = 0
    locality: AffinityLabels = field(default_factory=AffinityLabels)
    priority: int = 0


class Snapshot:
    """Nodes, GPUs and holdings. Queries read the arrays; `take` and `release` change one row."""

    def __init__(self, *, salt: int = 0) -> None:
        self._salt = salt.to_bytes(8, "little", signed=True)
        self.rows_version = 0
        """Counts up when rows or kinds change, so that readers with arrays of their own start over."""
        self.kinds: list[GpuKind] = []
        self.kind_gpus: list[Gpu] = []
        """One GPU of each kind."""
        self._kind_of: dict[GpuKind, int] = {}
        self.holdings: dict[str, Holding] = {}
        self._on_node: dict[str, set[str]] = {}
        self.nodes: dict[str, Node] = {}
        self.rows_of: dict[str, list[int]] = {}
        self.cell_of: dict[tuple[str, str], tuple[int, int]] = {}
        self._labels: dict[str, int] = {}
        self._label_cells: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
        self._state_of: dict[tuple[str, str], GpuState] = {}
        self._spare: list[int] = []
        self._log: list[int] = []
        self._log_start = 0
        self.node_names: list[str] = []
        self.uuids: list[tuple[str, ...]] = []
        self.wiring: list[GpuTopology] = []
        self._allocate(0, 1)

    @classmethod
    def of(cls, nodes: Iterable[Node], holdings: Iterable[Holding] = (), *, salt: int = 0) -> "Snapshot":
        """Make a snapshot of these nodes with what is already running on them, which is never refused."""
        snapshot = cls(salt=salt)
        for node in nodes:
            snapshot.add(node)
        for holding in holdings:
            snapshot.take(holding, force=True)
        return snapshot

    # -- arrays ------------------------------------------------------------------------------------------------

    def _allocate(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cpu: IntArray = np.full(rows, -1, np.int64)
        self.memory: IntArray = np.full(rows, -1, np.int64)
        self.kind: IntArray = np.zeros(rows, np.int64)
        self.key: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        """Noise that breaks ties; it follows the node's name, so that a rebuilt snapshot answers the same."""
        self.milli: IntArray = np.zeros((rows, columns), np.int64)
        self.mib: IntArray = np.zeros((rows, columns), np.int64)
        self.tenants: IntArray = np.zeros((rows, columns), np.int64)
        self.open: BoolArray = np.zeros((rows, columns), np.bool_)
        self.policy: IntArray = np.zeros((rows, columns), np.int64)
        """The share policy's bit. GPUs of one kind may differ in it: an admin changes it at any time."""
        self.exclusion: IntArray = np.full((rows, columns), NOBODY, np.int64)
        self.residue: IntArray = np.zeros((rows, columns), np.int64)
        """The largest share with the GPU's own ratio of compute to memory that is free, in milli."""
        self.offered: IntArray = np.full((rows, columns), -1, np.int64)
        """The free milli of GPUs that pods without labels may join, -1 on all others."""
        self.distinct: BoolArray = np.zeros((rows, columns), np.bool_)
        """GPUs that differ from all GPUs before them in the row: only these need to be checked."""

    def _grow(self, rows: int, columns: int) -> None:
        names = ("cpu", "memory", "kind", "key", "milli", "mib", "tenants", "open", "policy", "exclusion")
        names += ("residue", "offered", "distinct")
        old = {name: getattr(self, name) for name in names}
        used, wide = self.rows, self.columns
        self._allocate(max(rows, used), max(columns, wide))
        for name, array in old.items():
            target = getattr(self, name)
            if array.ndim == 1:
                target[:used] = array
            else:
                target[:used, :wide] = array

    # -- nodes -------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Add a node without pods."""
        if node.name in self.nodes:
            raise BadRequest("node", node.name, "a name that no other node has")
        groups: dict[GpuKind, list[Gpu]] = {}
        for gpu in node.gpus:
            if (node.name, gpu.uuid) in self.cell_of or any(gpu.uuid == g.uuid for c in groups.values() for g in c):
                raise BadRequest(f"node {node.name}: gpu", gpu.uuid, "listed once")
            groups.setdefault(GpuKind.of(gpu), []).append(gpu)
        if not groups:
            groups[NO_GPUS] = []
        self.nodes[node.name] = node
        self.rows_of[node.name] = []
        self._on_node[node.name] = set()
        digest = hashlib.blake2b(node.name.encode(), digest_size=8, key=self._salt).digest()
        for kind, gpus in groups.items():
            row = self._new_row(len(gpus))
            self.rows_of[node.name].append(row)
            self.node_names[row] = node.name
            self.uuids[row] = tuple(gpu.uuid for gpu in gpus)
            self.wiring[row] = _wiring(gpus)
            self.kind[row] = self._kind_number(kind, gpus)
            self.key[row] = int.from_bytes(digest, "little")
            self.cpu[row] = node.cpu_milli or UNCOUNTED
            self.memory[row] = node.memory_mib or UNCOUNTED
            for column, gpu in enumerate(gpus):
                self.cell_of[node.name, gpu.uuid] = row, column
                self.milli[row, column] = gpu.allocatable
                self.mib[row, column] = gpu.allocatable_mib
                self.open[row, column] = gpu.state is GpuState.OK
                self.policy[row, column] = POLICY_BITS[gpu.policy]
                self._state_of[node.name, gpu.uuid] = gpu.state
            self._changed(row)
        self.rows_version += 1

    def _new_row(self, columns: int) -> int:
        if columns > self.columns:
            self._grow(self.rows, columns)
        if not self._spare:
            start = self.rows
            self._grow(max(16, start + start // 2), self.columns)
            more = self.rows - start
            self.node_names += [""] * more
            self.uuids += [()] * more
            self.wiring += [_wiring([])] * more
            self._spare = list(range(self.rows - 1, start - 1, -1))
        return self._spare.pop()

    def _kind_number(self, kind: GpuKind, gpus: list[Gpu]) -> int:
        if kind not in self._kind_of:
            self._kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
            self.kind_gpus.append(gpus[0] if gpus else Gpu("", "", Mib(1)))
        return self._kind_of[kind]

    def remove(self, name: str) -> None:
        """Remove a node with all that is on it."""
        for pod in tuple(self._on_node[name]):
            self.release(pod)
        for row in self.rows_of.pop(name):
            for array in (self.milli, self.mib, self.tenants, self.policy):
                array[row] = 0
            self.open[row] = False
            self.exclusion[row] = NOBODY
            self.cpu[row] = self.memory[row] = -1
            self.kind[row] = 0
            for uuid in self.uuids[row]:
                del self.cell_of[name, uuid], self._state_of[name, uuid]
            self.node_names[row], self.uuids[row] = "", ()
            self._changed(row)
            self._spare.append(row)
        del self.nodes[name], self._on_node[name]
        self.rows_version += 1

    def set_state(self, node: str, uuid: str, state: GpuState) -> None:
        """Change the state of a GPU; pods that hold a share of it keep it."""
        row, column = self._cell(node, uuid)
        self.open[row, column] = state is GpuState.OK
        self._state_of[node, uuid] = state
        self._changed(row)

    def gpu(self, node: str, uuid: str) -> Gpu:
        """A GPU as its node reports it."""
        return next(gpu for gpu in self.nodes[node].gpus if gpu.uuid == uuid)

    def state(self, node: str, uuid: str) -> GpuState:
        """The state of a GPU as last reported."""
        return self._state_of[node, uuid]

    def _cell(self, node: str, uuid: str) -> tuple[int, int]:
        cell = self.cell_of.get((node, uuid))
        if cell is None:
            raise BadRequest("gpu", f"{node}/{uuid}", "a GPU of a node in the snapshot")
        return cell

    # -- what pods hold ----------------------------------------------------------------------------------------

    def take(self, holding: Holding, *, force: bool = False) -> None:
        """Count what a pod holds. Raises if that would over-commit, unless the pod already runs (`force`)."""
        if holding.pod in self.holdings:
            raise BadRequest("pod", holding.pod, "a pod that holds nothing yet")
        if holding.node not in self.nodes:
            raise BadRequest("node", holding.node, "a node in the snapshot")
        cells = [(self._cell(holding.node, uuid), demand) for uuid, demand in holding.demands]
        if not force:
            self._check(holding, cells)
        self.holdings[holding.pod] = holding
        self._on_node[holding.node].add(holding.pod)
        self._book(holding, cells, -1)

    def release(self, pod: str) -> Holding:
        """Undo `take`, exactly."""
        holding = self.holdings.pop(pod, None)
        if holding is None:
            raise BadRequest("pod", pod, "a pod that holds something")
        self._on_node[holding.node].discard(pod)
        cells = [(self.cell_of[holding.node, uuid], demand) for uuid, demand in holding.demands]
        self._book(holding, cells, +1)
        return holding

    def use(self, node: str, cpu_milli: int, memory_mib: int) -> None:
        """Count CPU and memory that a pod without a GPU uses, or no longer uses; an unknown node has none."""
        for row in self.rows_of.get(node, ()):
            self.cpu[row] -= cpu_milli
            self.memory[row] -= memory_mib
            self._note(row)

    def holdings_on(self, node: str) -> list[Holding]:
        """What runs on a node, in the order of the pods' names."""
        return [self.holdings[pod] for pod in sorted(self._on_node[node])]

    def _check(self, holding: Holding, cells: Sequence[tuple[tuple[int, int], GpuDemand]]) -> None:
        row = self.rows_of[holding.node][0]
        if self.cpu[row] < holding.cpu_milli or self.memory[row] < holding.memory_mib:
            raise NoCapacity(f"node {holding.node} has no CPU or memory left for {holding.pod}")
        for (at, column), demand in cells:
            enough = self.milli[at, column] >= demand.milli and self.mib[at, column] >= demand.mib
            if not enough or (demand.whole and self.tenants[at, column]):
                uuid = self.uuids[at][column]
                raise NoCapacity(f"{holding.node}/{uuid} has no room left for {holding.pod}")

    def _book(self, holding: Holding, cells: Sequence[tuple[tuple[int, int], GpuDemand]], sign: int) -> None:
        for row in self.rows_of[holding.node]:
            self.cpu[row] += sign * holding.cpu_milli
            self.memory[row] += sign * holding.memory_mib
        for (row, column), demand in cells:
            self.milli[row, column] += sign * demand.milli
            self.mib[row, column] += sign * demand.mib
            self.tenants[row, column] -= sign
            self._label(holding.locality, (row, column), -sign)
        for row in self.rows_of[holding.node]:
            self._changed(row)

    # -- labels ------------------------------------------------------------------------------------------------

    def _label(self, locality: AffinityLabels, cell: tuple[int, int], change: int) -> None:
        if not self.tenants[cell]:
            self.exclusion[cell] = NOBODY
        elif change > 0:
            self.exclusion[cell] = self.label_number(locality.exclusion)
        for name, label in (("affinity", locality.affinity), ("anti", locality.anti_affinity)):
            if label is None:
                continue
            cells = self._label_cells.setdefault((name, label), {})
            cells[cell] = cells.get(cell, 0) + change
            if not cells[cell]:
                del cells[cell]
                if not cells:
                    del self._label_cells[name, label]

    def label_number(self, label: str | None) -> int:
        """A number for an exclusion label; 0 for none."""
        return 0 if label is None else self._labels.setdefault(label, len(self._labels) + 1)

    def cells_with(self, *, affinity: str | None = None, anti_affinity: str | None = None) -> list[tuple[int, int]]:
        """The GPUs that a pod with this label is on."""
        name, label = ("affinity", affinity) if affinity is not None else ("anti", anti_affinity)
        return [] if label is None else list(self._label_cells.get((name, label), ()))

    # -- changes -----------------------------------------------------------------------------------------------

    def _changed(self, row: int) -> None:
        """Bring what is derived from a row up to date, and record that it changed."""
        kind = self.kinds[int(self.kind[row])]
        seen: set[tuple[int, ...]] = set()
        milli, mib = self.milli[row].tolist(), self.mib[row].tolist()
        exclusion, is_open = self.exclusion[row].tolist(), self.open[row].tolist()
        residue, offered, distinct = [0] * self.columns, [-1] * self.columns, [False] * self.columns
        for column in range(len(self.uuids[row])):
            if not is_open[column]:
                continue
            free = max(0, min(milli[column], mib[column] * kind.milli // kind.mib))
            residue[column] = min(free, 1000)
            offered[column] = milli[column] if exclusion[column] <= 0 else -1
            state = (milli[column], mib[column], exclusion[column])
            distinct[column] = state not in seen
            seen.add(state)
        self.residue[row] = residue
        self.offered[row] = offered
        self.distinct[row] = distinct
        self._note(row)

    def _note(self, row: int) -> None:
        """Record that a row changed."""
        self._log.append(row)
        if len(self._log) > _LOG_MAX:
            self._log_start += len(self._log)
            self._log.clear()

    def row_state(self, row: int) -> RowState:
        """Return the row's state: rows with the same state have room for the same requests."""
        gpus = (self.milli, self.mib, self.tenants, self.exclusion, self.open, self.policy)
        milli, mib, tenants, exclusion, is_open, policy = (each[row].tobytes() for each in gpus)
        return int(self.kind[row]), int(self.cpu[row]), milli, mib, tenants, exclusion, is_open, policy

    @property
    def now(self) -> int:
        """How many changes there have been."""
        return self._log_start + len(self._log)

    def changed_since(self, then: int) -> list[int] | None:
        """The rows that changed since `then`, each once; None when that is too long ago to tell."""
        if then < self._log_start:
            return None
        return list(dict.fromkeys(self._log[then - self._log_start :]))


def _wiring(gpus: Sequence[Gpu]) -> GpuTopology:
    if not any(gpu.links for gpu in gpus):
        return _unlinked(tuple(gpu.numa for gpu in gpus))
    ranks = tuple(tuple(_rank(a.links.get(b.uuid)) for b in gpus) for a in gpus)
    nvlink = tuple(
        sum(1 << j for j, b in enumerate(gpus) if (link := a.links.get(b.uuid)) is not None and link.is_nvlink)
        for a in gpus
    )
    return GpuTopology(tuple(gpu.numa for gpu in gpus), nvlink, ranks)


@lru_cache(maxsize=256)
def _unlinked(numa: tuple[int, ...]) -> GpuTopology:
    """GPUs without known links: one value for thousands of nodes."""
    return GpuTopology(numa, (0,) * len(numa), ((0,) * len(numa),) * len(numa))


def _rank(link: GpuLink | None) -> int:
    """0 for no known link, then from the farthest bridge to NVLink, which counts its lanes."""
    if link is None:
        return 0
    return len(LINK_KINDS) - LINK_KINDS.index(link.kind) + link.lanes
