"""The default score: place where the cluster stays most usable for the requests that are expected.

`docs/placement.md` explains it in words. In short, a node's free GPU is worth, for each expected class of
requests, what that class could use of it; classes that find little room in the cluster weigh more; a placement
scores the change of the node's worth. FGD, as published, is the same score with other numbers (`FGD`).

All classes with the same number and size of GPUs are one level, so that the worth of a node is a sum over some
twenty levels with weights looked up by the kind of its GPUs and by its free CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from milligpu.placement.fit import Candidates, RequestKey, RequestSpec
from milligpu.placement.snapshot import UNCOUNTED, IntArray, Snapshot

FloatArray = npt.NDArray[np.float32]
WideArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PackingWeights:
    """The numbers of the score; each lies on a plateau, and none was fitted to one trace."""

    copies: float = 0.12
    """The weight of how many more requests fit, relative to how much free GPU they can reach."""
    priced: bool = True
    """Whether classes with little room left weigh more, and small shares weigh more per milli."""
    room: float = 8000.0
    """Room, in milli, that softens the price of a class that has nearly none."""
    balance: float = 0.1
    """The worth of free CPU and free GPU being on the same node in the proportion that requests need."""
    cpu: float = 1.0
    """The worth of CPU for pods that want no GPU, when as much CPU is free as is expected to be asked for."""
    cpu_stress: float = 2.0
    """The power with which that worth grows when CPU gets short."""
    cpu_copies: float = 0.5
    """As `copies`, for pods that want no GPU."""
    cover: float = 1.0
    """The fraction of all expected requests whose classes count, most frequent first."""
    bin_milli: float | None = 25.0
    """Scores that differ by less are equal; None is FGD's own rounding."""


PACKING = PackingWeights()
FGD = PackingWeights(copies=0.0, priced=False, balance=0.0, cpu=0.0, cover=0.95, bin_milli=None)
"""Fragmentation gradient descent as its authors published it."""

# Scores that differ only by the rounding of floats must be equal.
_EPSILON = 1e-3
# Above this many levels, sizes are rounded up to coarser steps; real workloads have about twenty.
_LEVELS_MAX = 48
_STEPS = (1, 5, 25, 50, 100, 250)
_CPU_BINS = 1024
# The price of CPU is bounded: beyond this it would keep GPUs idle for the sake of pods that want none.
_CPU_PRICE_MAX = 4.0
_TYPICAL_CPU = 12_000.0
_NO_ROWS: IntArray = np.zeros(0, np.int64)


class PackingScore:
    """The worth of every row, kept up to date, and the scores that follow from it."""

    def __init__(self, snapshot: Snapshot, weights: PackingWeights = PACKING) -> None:
        self.snapshot = snapshot
        self.weights = weights
        self._empty()

    def _empty(self) -> None:
        self._set_levels([(1, 1000)])
        kinds = max(1, len(self.snapshot.kinds))
        self._thresholds: IntArray = np.zeros(0, np.int64)
        self._weight: FloatArray = np.zeros((kinds, 1, 1), np.float32)
        self._inverse_cpu: FloatArray = np.zeros((kinds, 1), np.float32)
        self._cpu_worth: FloatArray = np.zeros(2, np.float32)
        self._cpu_step = 1.0
        self._per_cpu = 0.0
        self._rebuild()

    # -- tables over residues ----------------------------------------------------------------------------------

    def _set_levels(self, levels: list[tuple[int, int]]) -> None:
        """Build the tables from a GPU's residue to what each level can use of it."""
        # Levels of one GPU first: for them a sum is enough, the others also need to know how many GPUs fit.
        levels = sorted(levels)
        self._levels = {level: at for at, level in enumerate(levels)}
        self._number = np.array([number for number, _ in levels], np.float32)
        size = np.array([share for _, share in levels], np.int64)
        self._size = size.astype(np.float32)
        self._ones = int((self._number == 1).sum())
        self._scale = (self.weights.copies * self._number * self._size).astype(np.float32)
        residue = np.arange(1001)[:, None]
        holds = residue >= size
        # In one table, so that one lookup returns all three: the GPU that a level can reach (weighted), how often
        # it fits, and whether it fits.
        reach = np.where(holds, residue, 0) * (1 - self.weights.copies)
        parts = (reach, residue // size / self._number, holds[:, self._ones :])
        self._table = np.concatenate(parts, axis=1).astype(np.float32)

    def _rebuild(self) -> None:
        """Measure all rows again."""
        snap = self.snapshot
        self.layout = snap.rows_version
        self._row_sums = np.zeros((snap.rows, self._table.shape[1]), np.float32)
        self._row_free = np.zeros(snap.rows, np.float32)
        self._row_worth = np.zeros(snap.rows, np.float32)
        self._seen = snap.now
        self._measure(np.arange(snap.rows))

    def _stale(self) -> IntArray:
        """The rows that changed since they were last measured, with their sums up to date but not their worth."""
        changed = self.snapshot.changed_since(self._seen)
        if changed is None or self.layout != self.snapshot.rows_version:
            if len(self._weight) < len(self.snapshot.kinds):
                more = len(self.snapshot.kinds) - len(self._weight)
                self._weight = np.pad(self._weight, ((0, more), (0, 0), (0, 0)))
                self._inverse_cpu = np.pad(self._inverse_cpu, ((0, more), (0, 0)))
            self._rebuild()
            return _NO_ROWS
        if not changed:
            return _NO_ROWS
        self._seen = self.snapshot.now
        rows = np.array(changed)
        self._sum_up(rows)
        return rows

    def _measure(self, rows: IntArray) -> None:
        self._sum_up(rows)
        self._row_worth[rows] = self._worth(
            rows, self.snapshot.cpu[rows], self._row_sums[rows], self._row_free[rows]
        )

    def _sum_up(self, rows: IntArray) -> None:
        residue = self.snapshot.residue[rows]
        self._row_sums[rows] = self._table[residue].sum(axis=1)
        self._row_free[rows] = residue.sum(axis=1, dtype=np.float32)

    # -- worth -------------------------------------------------------------------------------------------------

    def _terms(self, rows: IntArray, cpu: IntArray) -> tuple[FloatArray, FloatArray]:
        """For rows with this much CPU: the weight of each level, and how many requests the CPU is enough for."""
        kind = self.snapshot.kind[rows]
        weight = self._weight[kind, np.searchsorted(self._thresholds, cpu, side="right")]
        most = cpu.astype(np.float32)[:, None] * self._inverse_cpu[kind]
        return weight, np.maximum(np.floor(most + _EPSILON), 1)

    def _worth(self, rows: IntArray, cpu: IntArray, sums: FloatArray, free: FloatArray) -> FloatArray:
        """What rows would be worth with this much CPU and GPU."""
        weight, most = self._terms(rows, cpu)
        return np.vecdot(weight, self._usable(sums, most)) + self._beside(cpu, free)

    def _usable(self, sums: FloatArray, most: FloatArray) -> FloatArray:
        """What each level can use of rows: the free GPU it can reach, blended with how often it fits."""
        ones, levels = self._ones, len(self._number)
        usable = sums[:, :levels].copy()
        if self.weights.copies:
            times = np.floor(sums[:, levels : 2 * levels] + _EPSILON)
            np.minimum(times, most, out=times)
            times *= self._scale
            usable += times
        if ones < levels:
            usable[:, ones:] *= sums[:, 2 * levels :] >= self._number[ones:]
        return usable

    def _beside(self, cpu: IntArray, free: FloatArray) -> FloatArray:
        """The worth that does not depend on levels: CPU next to GPU, and CPU for pods that want no GPU."""
        if self.weights.balance <= 0:
            return np.zeros(len(cpu), np.float32)
        step = np.minimum(cpu * (1 / self._cpu_step), len(self._cpu_worth) - 1).astype(np.int64)
        beside = np.minimum(free, cpu * self._per_cpu) * self.weights.balance
        return (beside + self._cpu_worth[step]).astype(np.float32)

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """How much of the cluster's worth each placement keeps; higher is better."""
        rows, stale = found.rows, self._stale()
        cpu = self.snapshot.cpu[rows] - spec.cpu
        sums, free = self._row_sums[rows], self._row_free[rows]
        taken: FloatArray | float = 0.0
        if found.columns.shape[1] == 1:
            before, after = found.before[:, 0], found.after[:, 0]
            sums += self._table[after] - self._table[before]
            taken = (before - after).astype(np.float32)
        elif found.columns.shape[1]:
            before, after = found.before, found.after
            sums += (self._table[after] - self._table[before]).sum(axis=1)
            taken = (before - after).sum(axis=1, dtype=np.float32)
        free -= taken
        if len(stale):
            # Rows as they are and as they would be in one go: for a single row the calls cost more than the work.
            worth = self._worth(
                np.concatenate((stale, rows)),
                np.concatenate((self.snapshot.cpu[stale], cpu)),
                np.concatenate((self._row_sums[stale], sums)),
                np.concatenate((self._row_free[stale], free)),
            )
            self._row_worth[stale] = worth[: len(stale)]
            worth = worth[len(stale) :]
        else:
            worth = self._worth(rows, cpu, sums, free)
        kept = (worth - self._row_worth[rows] + taken).astype(np.float64)
        if self.weights.bin_milli is None:
            return np.floor(100 / (1 + np.exp(-np.clip(kept / 1000, -50, 50))))
        return np.floor(kept / self.weights.bin_milli + _EPSILON)

    # -- prices ------------------------------------------------------------------------------------------------

    def reprice(self, counts: Mapping[RequestKey, float], specs: Mapping[RequestKey, RequestSpec]) -> None:
        """Set the weights of the classes again from what is expected and from what has room now."""
        chosen = _covered(counts, self.weights.cover)
        total = sum(chosen.values())
        gpu = {key: count / total for key, count in chosen.items() if specs[key].wants_gpu}
        only_cpu = {key: count / total for key, count in chosen.items() if key.cpu_milli and not key.shares}
        if not gpu:
            self._empty()
            return
        classes = [specs[key] for key in gpu]
        part = np.array(list(gpu.values()))
        level = self._classify(classes)
        demand = np.array([float((c.count * c.share)[c.allowed].max(initial=0)) for c in classes])
        size = np.array([float(c.share[c.allowed].max(initial=1)) for c in classes])
        cpu = np.array([c.cpu for c in classes], np.int64)
        asked_gpu = float(part @ demand)
        self._per_cpu = asked_gpu / float(part @ cpu) if (part @ cpu) > 0 else 0.0
        self._thresholds = np.unique(cpu)
        self._weigh(part, level, cpu)
        self._rebuild()
        if self.weights.priced:
            price = part / np.maximum(size, 1.0) * 1000 / (self._room(level, cpu) + self.weights.room)
            self._weigh(price * part.sum() / price.sum(), level, cpu)
        self._price_cpu(only_cpu, float(part @ cpu), asked_gpu)
        self._rebuild()

    def _classify(self, classes: list[RequestSpec]) -> IntArray:
        """The level of each class on each kind of GPU; -1 where it does not fit."""
        number = np.array([c.count for c in classes])
        share = np.maximum(np.array([c.share for c in classes]), 1)
        allowed = np.array([c.allowed for c in classes]) & (number > 0)
        rounded, levels = share, set[tuple[int, int]]()
        for step in _STEPS:
            rounded = np.minimum(-(-share // step) * step, 1000)
            levels = {(int(n), int(s)) for n, s in zip(number[allowed], rounded[allowed], strict=True)}
            if len(levels) <= _LEVELS_MAX:
                break
        self._set_levels(sorted(levels) or [(1, 1000)])
        at = np.full(share.shape, -1, np.int64)
        for place in zip(*np.nonzero(allowed), strict=True):
            at[place] = self._levels.get((int(number[place]), int(rounded[place])), -1)
        return at

    def _weigh(self, weight: WideArray, level: IntArray, cpu: IntArray) -> None:
        """Tables of weights by kind of GPU, free CPU and level, and the mean CPU of each level."""
        kinds, levels = level.shape[1], len(self._levels)
        table = np.zeros((kinds, len(self._thresholds) + 1, levels))
        cpu_sum, sums = np.zeros((kinds, levels)), np.zeros((kinds, levels))
        from_bin = np.searchsorted(self._thresholds, cpu, side="left") + 1
        for kind in range(kinds):
            some = np.flatnonzero(level[:, kind] >= 0)
            np.add.at(table[kind], (from_bin[some], level[some, kind]), weight[some])
            np.add.at(cpu_sum[kind], level[some, kind], weight[some] * cpu[some])
            np.add.at(sums[kind], level[some, kind], weight[some])
        self._weight = np.cumsum(table, axis=1).astype(np.float32)
        # A level that needs no CPU is never bounded by it.
        mean = np.divide(cpu_sum, sums, out=np.zeros_like(sums), where=sums > 0)
        self._inverse_cpu = np.where(mean > 0, 1 / np.maximum(mean, 1e-9), 1e6).astype(np.float32)

    def _room(self, level: IntArray, cpu: IntArray) -> WideArray:
        """How much of the cluster's free GPU each class could use now, relative to all that is free."""
        snap = self.snapshot
        rows = np.flatnonzero(self._row_free > 0)
        _, most = self._terms(rows, snap.cpu[rows])
        usable = self._usable(self._row_sums[rows], most)
        bins = np.searchsorted(self._thresholds, snap.cpu[rows], side="right")
        sums = np.zeros((level.shape[1], len(self._thresholds) + 1, len(self._levels)))
        np.add.at(sums, (snap.kind[rows], bins), usable)
        # From a class's CPU upwards all rows count.
        upward = np.cumsum(sums[:, ::-1], axis=1)[:, ::-1]
        from_bin = np.searchsorted(self._thresholds, cpu, side="left") + 1
        kinds: IntArray = np.arange(level.shape[1], dtype=np.int64)
        each = upward[kinds, from_bin[:, None], np.maximum(level, 0)]
        return np.where(level >= 0, each, 0.0).sum(axis=1)

    def _price_cpu(self, only_cpu: Mapping[RequestKey, float], gpu_cpu: float, asked_gpu: float) -> None:
        """The worth of a node's free CPU to pods that want no GPU, in milli-GPU."""
        free = self.snapshot.cpu[(self.snapshot.cpu >= 0) & (self.snapshot.cpu < UNCOUNTED // 2)]
        self._cpu_worth = np.zeros(2, np.float32)
        self._cpu_step = 1.0
        if not only_cpu or self.weights.cpu <= 0 or asked_gpu <= 0 or not free.sum():
            return
        total = float(free.sum())
        asked = gpu_cpu + sum(part * key.cpu_milli for key, part in only_cpu.items())
        stress = asked / asked_gpu * float(self._row_free.sum()) / total
        price = min(self.weights.cpu * stress**self.weights.cpu_stress, _CPU_PRICE_MAX)
        whole = [node.cpu_milli for node in self.snapshot.nodes.values()]
        gpus = sum(len(uuids) for uuids in self.snapshot.uuids)
        milli_per_cpu = gpus * 1000 / sum(whole)
        share = self.weights.cpu_copies
        self._cpu_step = max(1.0, max(whole) / _CPU_BINS)
        have = np.arange(_CPU_BINS + 1) * self._cpu_step
        worth = np.zeros(len(have))
        for key, part in only_cpu.items():
            need = key.cpu_milli

            def usable(cpu: IntArray | npt.NDArray[np.floating], need: int = need) -> WideArray:
                return np.where(cpu >= need, (1 - share) * cpu + share * (cpu // need) * need, 0.0)

            room = float(usable(free).sum())
            scarce = milli_per_cpu * total / (room + 8 * _TYPICAL_CPU)
            worth += price * part * (_TYPICAL_CPU / need) * scarce * usable(have)
        self._cpu_worth = worth.astype(np.float32)


def _covered(counts: Mapping[RequestKey, float], cover: float) -> dict[RequestKey, float]:
    """The most frequent specs that make up this part of all requests."""
    if cover >= 1:
        return dict(counts)
    chosen: dict[RequestKey, float] = {}
    left = cover * sum(counts.values())
    for key, count in sorted(counts.items(), key=lambda item: (-item[1], -item[0].cpu_milli)):
        chosen[key] = count
        left -= count
        if left <= 0:
            break
    return chosen
