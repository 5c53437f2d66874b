"""Where a request can go: every constraint, checked for all nodes at once.

What a request needs is worked out once per kind of GPU and kept in a `RequestSpec`; requests that differ only in
their pod's name, labels or the node's memory share one. GPUs of one request are GPUs of one kind on one node.
"""

from dataclasses import dataclass, replace

import numpy as np

from milligpu.model.affinity import AffinityLabels
from milligpu.model.footprint import Footprint, GpuDemand, footprint
from milligpu.model.gpu import SharingMode
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses
from milligpu.model.policy import SharePolicy
from milligpu.model.reasons import AmountUnit, Reason
from milligpu.model.request import ContainerKind, ContainerRequest, PodRequest, ShareRequest
from milligpu.model.requirements import Requirements
from milligpu.placement.gpu_sets import best_gpu_set
from milligpu.placement.snapshot import (
    ANY_POLICY,
    NO_GPUS,
    NOBODY,
    POLICY_BITS,
    BoolArray,
    GpuKind,
    GpuTopology,
    IntArray,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What two requests have in common when the same GPUs fit both for the same reasons."""

    shares: tuple[tuple[ShareRequest, ContainerKind], ...]
    policy: SharePolicy | None
    requirements: Requirements
    cpu_milli: int

    @classmethod
    def of(cls, request: PodRequest, classes: GpuClasses = NO_CLASSES) -> "RequestKey":
        """The key of a request, with its class replaced by the requirements of the class."""
        wants = request.requirements
        if request.gpu_class is not None:
            wants = wants.and_(classes.requirements(request.gpu_class))
        shares = tuple((c.share, c.kind) for c in request.containers if c.share is not None)
        return cls(shares, request.policy, wants, request.cpu_milli)

    @property
    def gpu_policies(self) -> int:
        """The bits of the share policies that a GPU may have for the request. Whole GPUs work under any policy."""
        if all(share.whole for share, _ in self.shares):
            return ANY_POLICY
        equal, fixed = POLICY_BITS[SharePolicy.EQUAL], POLICY_BITS[SharePolicy.FIXED]
        if self.policy is SharePolicy.EQUAL:
            return equal
        # The policy equal guarantees no share, and without a share a GPU that lends no idle time gives nothing.
        refused = equal if self.policy is not None else 0
        if any(share.milli == 0 for share, _ in self.shares):
            refused |= fixed
        return ANY_POLICY & ~refused


@dataclass(frozen=True, slots=True)
class KindNeed:
    """What a request takes of GPUs of one kind, or why they do not fit."""

    demands: tuple[GpuDemand, ...]
    reason: Reason | None = None
    wanted: int = 0
    best: int = 0
    unit: AmountUnit | None = None
    message: str = ""


class RequestSpec:
    """A request as numbers per kind of GPU; grows as the snapshot learns new kinds."""

    def __init__(self, key: RequestKey, snapshot: Snapshot) -> None:
        self.key = key
        self.cpu = key.cpu_milli
        self.needs: list[KindNeed] = []
        self.count = np.zeros(0, np.int64)
        self.milli = np.zeros(0, np.int64)
        self.mib = np.zeros(0, np.int64)
        self.share = np.zeros(0, np.int64)
        """The dominant share of one GPU in milli: the larger of its compute and its memory."""
        self.allowed = np.zeros(0, np.bool_)
        self.whole = any(share.whole for share, _ in key.shares)
        self.policies = key.gpu_policies
        self.grouped = key.requirements.nvlink or key.requirements.numa
        self.uneven = False
        """Whether it takes different amounts of several GPUs."""
        self.most = 0
        """The most GPUs it takes on any kind."""
        self.simple = False
        """Whether it wants one GPU, whichever fits."""
        self.learn(snapshot)

    @property
    def wants_gpu(self) -> bool:
        """Whether it needs any GPU."""
        return bool(self.key.shares)

    def learn(self, snapshot: Snapshot) -> None:
        """Work out the needs on kinds that are new."""
        for number in range(len(self.needs), len(snapshot.kinds)):
            self.needs.append(_need(self.key, snapshot, number))
        demands = [need.demands for need in self.needs]
        self.count = np.array([len(each) for each in demands], np.int64)
        self.milli = np.array([max((d.milli for d in each), default=0) for each in demands], np.int64)
        self.mib = np.array([max((d.mib for d in each), default=0) for each in demands], np.int64)
        self.allowed = np.array([need.reason is None for need in self.needs], np.bool_)
        gpus = np.array([[kind.milli, kind.mib] for kind in snapshot.kinds], np.int64).reshape(-1, 2)
        self.share = np.minimum(np.maximum(self.milli, -(-self.mib * gpus[:, 0] // gpus[:, 1])), 1000)
        self.uneven = any(len(set(each)) > 1 for each in demands)
        self.most = int(self.count.max(initial=0))
        named = self.key.requirements.uuids is not None or bool(self.key.requirements.uuids_not)
        self.simple = self.wants_gpu and self.most == 1 and not named and self.policies == ANY_POLICY


def _need(key: RequestKey, snapshot: Snapshot, number: int) -> KindNeed:
    kind, gpu = snapshot.kinds[number], snapshot.kind_gpus[number]
    if kind is NO_GPUS and key.shares:
        return KindNeed((), Reason.NO_GPU)
    if not key.shares:
        return KindNeed(())
    folded = footprint(containers_of(key), gpu)
    demands = tuple(sorted(folded.demands, key=lambda d: (d.milli, d.mib), reverse=True))
    # GPUs of one kind have different UUIDs; those are looked at GPU by GPU.
    unmet = replace(key.requirements, uuids=None, uuids_not=()).refuse("", gpu)
    if unmet is not None:
        return KindNeed(demands, unmet.reason, unmet.wanted, unmet.best, unmet.unit, unmet.message)
    return _sized(kind, demands)


def _sized(kind: GpuKind, demands: tuple[GpuDemand, ...]) -> KindNeed:
    shared = any(not demand.whole for demand in demands)
    if kind.mode is SharingMode.MIG or (kind.mode is SharingMode.WHOLE and shared):
        return KindNeed(demands, Reason.MODE_MISMATCH)
    largest = demands[0]
    if largest.milli > kind.usable:
        return KindNeed(demands, Reason.TOO_LARGE, largest.milli, kind.usable, AmountUnit.COMPUTE)
    memory = max(demand.mib for demand in demands)
    if memory > kind.usable_mib:
        return KindNeed(demands, Reason.TOO_LARGE, memory, kind.usable_mib, AmountUnit.MEMORY)
    return KindNeed(demands)


def containers_of(key: RequestKey) -> tuple[ContainerRequest, ...]:
    """Containers that ask for what the key says."""
    return tuple(ContainerRequest(str(at), share, kind) for at, (share, kind) in enumerate(key.shares))


def label_mask(snapshot: Snapshot, locality: AffinityLabels) -> BoolArray:
    """The GPUs that a pod with these labels may join."""
    mine = snapshot.label_number(locality.exclusion)
    mask = snapshot.open & ((snapshot.exclusion == NOBODY) | (snapshot.exclusion == mine))
    for cell in snapshot.cells_with(anti_affinity=locality.anti_affinity):
        mask[cell] = False
    together = snapshot.cells_with(affinity=locality.affinity)
    if together:
        only = np.zeros_like(mask)
        for cell in together:
            only[cell] = True
        mask &= only
    return mask


@dataclass(frozen=True, slots=True)
class Candidates:
    """Possible placements of a spec: the row of each, the columns it uses, and their residues before and after."""

    rows: IntArray
    columns: IntArray
    before: IntArray
    after: IntArray

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, some: BoolArray) -> "Candidates":
        """Only the candidates that the mask selects."""
        return Candidates(self.rows[some], self.columns[some], self.before[some], self.after[some])


_NONE: IntArray = np.zeros(0, np.int64)
_NO_COLUMN: IntArray = np.zeros((0, 1), np.int64)


class Fitter:
    """Finds the possible placements of a spec."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._groups: dict[tuple[GpuTopology, int, int, bool, bool], tuple[int, ...] | None] = {}

    def cells(self, spec: RequestSpec, rows: IntArray | slice, locality: AffinityLabels | None = None) -> BoolArray:
        """Which GPUs of these rows have room for the spec's largest demand on one GPU."""
        snap = self.snapshot
        kind = snap.kind[rows]
        free = snap.offered if locality is None else np.where(label_mask(snap, locality), snap.milli, -1)
        # No GPU has this much free, so rows of other kinds and rows that are short of CPU never fit.
        least = np.where(spec.allowed[kind] & (snap.cpu[rows] >= spec.cpu), spec.milli[kind], 1 << 40)
        fits = (free[rows] >= least[:, None]) & (snap.mib[rows] >= spec.mib[kind][:, None])
        if spec.whole and not spec.uneven:
            fits &= snap.tenants[rows] == 0
        if spec.policies != ANY_POLICY:
            fits &= (snap.policy[rows] & spec.policies) != 0
        wants = spec.key.requirements
        if wants.uuids is not None or wants.uuids_not:
            fits &= self._named(wants)[rows]
        return fits

    def _named(self, wants: Requirements) -> BoolArray:
        mask = np.full(self.snapshot.open.shape, wants.uuids is None)
        for (_, uuid), cell in self.snapshot.cell_of.items():
            if wants.uuids is not None and uuid in wants.uuids:
                mask[cell] = True
            if uuid in wants.uuids_not:
                mask[cell] = False
        return mask

    def find(
        self,
        spec: RequestSpec,
        rows: IntArray | None = None,
        locality: AffinityLabels | None = None,
        *,
        linked: bool = False,
    ) -> Candidates:
        """All distinct placements on these rows, or on all rows. Unlabeled requests have no `locality`.

        Several GPUs are the fullest that fit, or, when `linked`, those with the best links.
        """
        snap = self.snapshot
        some: IntArray | slice = slice(None) if rows is None else rows
        if not spec.wants_gpu:
            at = np.flatnonzero(snap.cpu[some] >= spec.cpu)
            return self._found(at if rows is None else rows[at], np.zeros((len(at), 0), np.int64), spec)
        if spec.uneven:
            return self._uneven(spec, rows, locality)
        if rows is not None and len(rows) == 1 and locality is None and spec.simple:
            return self._one_row(spec, rows)
        fits = self.cells(spec, some, locality)
        if spec.most <= 1:
            # GPUs that are alike count once, unless labels or UUIDs distinguish them.
            if locality is None and spec.simple:
                fits &= snap.distinct[some]
            at, column = np.nonzero(fits)
            return self._found(at if rows is None else rows[at], column[:, None], spec)
        return self._several(spec, rows, fits, linked=linked or spec.grouped)

    def _one_row(self, spec: RequestSpec, rows: IntArray) -> Candidates:
        """Do what `find` does for one GPU on one row, the most frequent update, with fewer and smaller steps."""
        snap, row = self.snapshot, int(rows[0])
        kind = int(snap.kind[row])
        if not spec.allowed[kind] or snap.cpu[row] < spec.cpu:
            return Candidates(_NONE, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN)
        fits = (snap.offered[row] >= spec.milli[kind]) & (snap.mib[row] >= spec.mib[kind]) & snap.distinct[row]
        if spec.whole:
            fits &= snap.tenants[row] == 0
        columns = fits.nonzero()[0]
        before = snap.residue[row, columns]
        after = np.zeros_like(before) if spec.whole else np.maximum(before - spec.share[kind], 0)
        return Candidates(rows.repeat(len(columns)), columns[:, None], before[:, None], after[:, None])

    def _found(self, rows: IntArray, columns: IntArray, spec: RequestSpec) -> Candidates:
        before = self.snapshot.residue[rows[:, None], columns]
        share = spec.share[self.snapshot.kind[rows]][:, None]
        after = np.zeros_like(before) if spec.whole else np.maximum(before - share, 0)
        return Candidates(rows, columns, before, after)

    def _several(self, spec: RequestSpec, rows: IntArray | None, fits: BoolArray, *, linked: bool) -> Candidates:
        """One placement per row: the fullest GPUs that fit, or a GPU set with the required links."""
        snap = self.snapshot
        # A pod's containers fold differently onto small and large GPUs; each kind has its own count.
        all_rows = np.arange(len(fits)) if rows is None else rows
        count = spec.count[snap.kind[all_rows]]
        enough = np.flatnonzero((fits.sum(axis=1) >= count) & (count > 0))
        width = spec.most
        if linked:
            picks = [self._group(spec, int(all_rows[at]), fits[at]) for at in enough]
            keep = [at for at, pick in zip(enough, picks, strict=True) if pick is not None]
            chosen = [pick for pick in picks if pick is not None]
        else:
            fullness = np.where(fits[enough], snap.residue[all_rows[enough]], 1 << 30)
            order = np.argsort(fullness, axis=1, kind="stable")
            keep, chosen = list(enough), [tuple(o[:c]) for o, c in zip(order.tolist(), count[enough], strict=True)]
        uniform = {len(each) for each in chosen}
        if uniform <= {width}:
            columns = np.array(chosen, np.int64).reshape(-1, width)
            return self._found(all_rows[np.array(keep, np.int64)], columns, spec)
        # Where counts differ, shorter rows repeat their last GPU, which does not change their score.
        parts = [self._found(all_rows[[at]], np.array([pick]), spec) for at, pick in zip(keep, chosen, strict=True)]
        return _joined(parts, width)

    def _group(self, spec: RequestSpec, row: int, fits: BoolArray) -> tuple[int, ...] | None:
        wants = spec.key.requirements
        count = int(spec.count[self.snapshot.kind[row]])
        bits = sum(1 << int(column) for column in np.flatnonzero(fits))
        return self.group(self.snapshot.wiring[row], bits, count, nvlink=wants.nvlink, numa=wants.numa)

    def group(
        self, wiring: GpuTopology, bits: int, count: int, *, nvlink: bool, numa: bool
    ) -> tuple[int, ...] | None:
        """The best-linked GPUs among `bits`, or None if no GPU set has the required links."""
        key = (wiring, bits, count, nvlink, numa)
        if key not in self._groups:
            if len(self._groups) > _GROUPS_MAX:
                self._groups.clear()
            self._groups[key] = best_gpu_set(wiring, bits, count, nvlink=nvlink, numa=numa)
        return self._groups[key]

    def _uneven(self, spec: RequestSpec, rows: IntArray | None, locality: AffinityLabels | None) -> Candidates:
        snap = self.snapshot
        mask = None if locality is None else label_mask(snap, locality)
        wants = spec.key.requirements
        named = self._named(wants) if wants.uuids is not None or wants.uuids_not else None
        parts: list[Candidates] = []
        width = spec.most
        for row in range(snap.rows) if rows is None else rows.tolist():
            kind = int(snap.kind[row])
            if not spec.allowed[kind] or snap.cpu[row] < spec.cpu:
                continue
            usable = snap.open[row] & (snap.exclusion[row] <= 0 if mask is None else mask[row])
            if named is not None:
                usable &= named[row]
            if spec.policies != ANY_POLICY:
                usable &= (snap.policy[row] & spec.policies) != 0
            pick = self._assign(spec, row, spec.needs[kind].demands, usable)
            if pick is not None:
                columns = np.array([pick])
                before = snap.residue[np.array([[row]]), columns]
                parts.append(Candidates(np.array([row]), columns, before, _uneven_after(snap, spec, kind, before)))
        return _joined(parts, width)

    def _assign(
        self, spec: RequestSpec, row: int, demands: tuple[GpuDemand, ...], usable: BoolArray
    ) -> tuple[int, ...] | None:
        """Choose a different GPU for each demand by exhaustive search, because GPUs and demands are few."""
        snap, wiring, wants = self.snapshot, self.snapshot.wiring[row], spec.key.requirements
        order = sorted(np.flatnonzero(usable).tolist(), key=lambda c: (int(snap.residue[row, c]), c))

        def takes(column: int, demand: GpuDemand) -> bool:
            if demand.whole and snap.tenants[row, column]:
                return False
            return bool(snap.milli[row, column] >= demand.milli and snap.mib[row, column] >= demand.mib)

        options = [[c for c in order if takes(c, demand)] for demand in demands]

        def linked(column: int, taken: tuple[int, ...]) -> bool:
            if wants.numa and any(wiring.numa[column] != wiring.numa[other] for other in taken):
                return False
            return not wants.nvlink or all(wiring.nvlink[column] >> other & 1 for other in taken)

        def search(taken: tuple[int, ...]) -> tuple[int, ...] | None:
            if len(taken) == len(demands):
                return taken
            for column in options[len(taken)]:
                if column not in taken and linked(column, taken):
                    found = search((*taken, column))
                    if found is not None:
                        return found
            return None

        return search(())


# A cluster has a handful of wirings with a few hundred sets of free GPUs each.
_GROUPS_MAX = 1 << 16


def _uneven_after(snap: Snapshot, spec: RequestSpec, kind: int, before: IntArray) -> IntArray:
    gpu = snap.kinds[kind]
    shares = [max(d.milli, -(-d.mib * gpu.milli // gpu.mib)) for d in spec.needs[kind].demands]
    return np.maximum(before - np.array([shares]), 0)


def _joined(parts: list[Candidates], width: int) -> Candidates:
    """Join several results; short ones repeat their last GPU without a change on it."""
    if not parts:
        none = np.zeros((0, width), np.int64)
        return Candidates(np.zeros(0, np.int64), none, none, none)

    def wide(array: IntArray) -> IntArray:
        return np.pad(array, ((0, 0), (0, width - array.shape[1])), mode="edge")

    before = np.concatenate([wide(part.before) for part in parts])
    after = np.concatenate([wide(part.after) for part in parts])
    for at, part in enumerate(parts):
        after[at, part.columns.shape[1] :] = before[at, part.columns.shape[1] :]
    columns = np.concatenate([wide(part.columns) for part in parts])
    return Candidates(np.concatenate([part.rows for part in parts]), columns, before, after)


def fold(request: PodRequest, snapshot: Snapshot, row: int) -> Footprint:
    """A request's containers on the GPUs of a row."""
    return footprint(request.containers, snapshot.kind_gpus[int(snapshot.kind[row])], request.policy)
