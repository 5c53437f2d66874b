"""How to choose among the placements that fit: one small class per strategy; packing has a module of its own.

Besides the strategies that users choose there are the baselines of the literature, for comparison in simulations.
A score is a number per possible placement of a spec; higher is better. Each class names its rule for ties.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

import numpy as np

from milligpu.model.policy import PlacementStrategy
from milligpu.model.units import WHOLE
from milligpu.placement.fit import Candidates, RequestKey, RequestSpec
from milligpu.placement.gpu_sets import gpu_set_quality
from milligpu.placement.packing import FGD, PACKING, PackingScore, WideArray
from milligpu.placement.snapshot import UNCOUNTED, BoolArray, IntArray, Snapshot


class BaselineStrategy(StrEnum):
    """Published strategies, to compare with; pods cannot ask for them."""

    RANDOM = "random"
    DOT_PRODUCT = "dot-product"
    GPU_PACKING = "gpu-packing"
    GPU_CLUSTERING = "gpu-clustering"
    FGD = "fgd"


StrategyName = PlacementStrategy | BaselineStrategy
STRATEGIES: tuple[StrategyName, ...] = (*PlacementStrategy, *BaselineStrategy)


class TieBreak(StrEnum):
    """Which of several equal scores wins."""

    NOISE = "noise"
    """Pseudo-random: each wins equally often, but always the same one for the same request and snapshot."""
    NAME = "name"
    """The first by name, as the published results have it."""


class Scorer(Protocol):
    """Scores possible placements of a spec."""

    ties: TieBreak
    lasting: bool
    """Whether a row's scores stay the same until the row changes or prices do."""
    linked: bool
    """Whether several GPUs should be those with the best links, rather than the fullest."""
    sampled: bool
    """Whether it may score only some rows of a large cluster, because scoring each takes long."""
    alike: bool
    """Whether rows of one kind with the same free CPU and the same free part of each GPU score the same."""

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """Return one number for each candidate."""
        ...

    def placed(self, spec: RequestSpec, row: int) -> None:
        """Note that a pod of this spec was placed on this row."""
        ...

    def reprice(self, counts: Mapping[RequestKey, float], specs: Mapping[RequestKey, RequestSpec]) -> None:
        """Called when the expected workload, or the room for it, has changed."""
        ...


class _Plain:
    """What most scorers have in common: they use no expected workload and keep no state."""

    ties = TieBreak.NAME
    lasting = True
    linked = False
    sampled = False
    alike = False

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def placed(self, spec: RequestSpec, row: int) -> None:
        """Do nothing: this scorer keeps no state."""

    def reprice(self, counts: Mapping[RequestKey, float], specs: Mapping[RequestKey, RequestSpec]) -> None:
        """Do nothing: this scorer uses no expected workload."""

    def _left(self, spec: RequestSpec, found: Candidates) -> tuple[WideArray, WideArray]:
        """CPU and GPU left on the row after each placement, as fractions of a large node (128 cores, 8 GPUs)."""
        snap = self.snapshot
        cpu = np.where(snap.cpu < UNCOUNTED // 2, snap.cpu, 0)[found.rows] - spec.cpu
        gpu = snap.residue[found.rows].sum(axis=1) - (found.before - found.after).sum(axis=1)
        return cpu / _LARGE_CPU, gpu / _LARGE_GPU


_LARGE_CPU, _LARGE_GPU = 128_000, 8_000


class PricedScore(_Plain):
    """The packing score with pseudo-random ties, or FGD as published with ties by name."""

    alike = True

    def __init__(self, snapshot: Snapshot, *, fgd: bool = False) -> None:
        super().__init__(snapshot)
        self.ties = TieBreak.NAME if fgd else TieBreak.NOISE
        self.sampled = not fgd
        self._packing = PackingScore(snapshot, FGD if fgd else PACKING)

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """Return `PackingScore.scores`."""
        return self._packing.scores(spec, found)

    def reprice(self, counts: Mapping[RequestKey, float], specs: Mapping[RequestKey, RequestSpec]) -> None:
        """Set the prices again."""
        self._packing.reprice(counts, specs)


class BestFitScore(_Plain):
    """The node with the least left, CPU and GPU alike; on it the fullest GPU that fits."""

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """Score the node in percent, as published; what is left of the GPU decides among equals."""
        cpu, gpu = self._left(spec, found)
        return np.floor((1 - (cpu + gpu) / 2) * 100) - found.before.sum(axis=1) / 1e6


class SpreadScore(_Plain):
    """The emptiest GPU, then the emptiest node: least interference now."""

    ties = TieBreak.NOISE

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """What is left of the GPU that is fullest afterwards."""
        cpu, gpu = self._left(spec, found)
        if not found.after.shape[1]:
            return cpu
        return found.after.min(axis=1) + (cpu + gpu) / 4


class TopologyScore(_Plain):
    """The GPU set with the best links; for a single GPU, the place that breaks up the fewest links."""

    ties = TieBreak.NOISE
    linked = True

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """The weakest link first, then all links, then the NUMA nodes; among equals the fullest node."""
        cpu, gpu = self._left(spec, found)
        fullness = 1 - (cpu + gpu) / 2
        if found.columns.shape[1] <= 1:
            return fullness - found.before.sum(axis=1) / _LARGE_GPU
        wiring = self.snapshot.wiring
        quality: list[float] = []
        for row, columns in zip(found.rows, found.columns, strict=True):
            weakest, total, numa = gpu_set_quality(wiring[int(row)], tuple(dict.fromkeys(map(int, columns))))
            quality.append(weakest * 1e6 + total * 100 + numa * 10)
        return np.array(quality) + fullness


class RandomChoiceScore(_Plain):
    """Any placement that fits."""

    lasting = False

    def __init__(self, snapshot: Snapshot, dice: np.random.Generator) -> None:
        super().__init__(snapshot)
        self._dice = dice

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:  # noqa: ARG002
        """Return a random number for each candidate."""
        return self._dice.random(len(found))


class DotProductScore(_Plain):
    """Prefer nodes whose free resources differ most in direction from the request."""

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """As published, in percent."""
        snap = self.snapshot
        cpu, gpu = self._left(spec, found)
        asked_cpu = spec.cpu / _LARGE_CPU
        asked_gpu = (found.before - found.after).sum(axis=1) / _LARGE_GPU
        product = (cpu + asked_cpu) * asked_cpu + (gpu + asked_gpu) * asked_gpu
        tightest = snap.residue[found.rows[:, None], found.columns].sum(axis=1) / 1e6
        return np.floor(100 * (1 - product / 2)) - tightest


class GpuPackingScore(_Plain):
    """First GPUs in use, then idle GPUs of nodes in use, then idle nodes."""

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:  # noqa: ARG002
        """The three tiers as published; the fullest GPU within a tier."""
        snap = self.snapshot
        if not found.columns.shape[1]:
            return np.zeros(len(found))
        width = np.array([len(uuids) for uuids in snap.uuids])[found.rows]
        idle = (snap.residue[found.rows] == WHOLE).sum(axis=1)
        largest = found.before.max(axis=1)
        in_use: IntArray = np.maximum(100 - largest // 100, 50)
        in_use[largest == WHOLE] = max(50 - found.columns.shape[1], 33)
        return np.where(idle == width, np.maximum(33 - idle, idle), in_use) - largest / 1e6


class GpuClusteringScore(_Plain):
    """Nodes that already host the same number of GPUs per pod, then fuller nodes."""

    lasting = False

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._hosts: BoolArray = np.zeros((0, 1), np.bool_)

    def _sized(self, count: int) -> BoolArray:
        rows, columns = self._hosts.shape
        if rows < self.snapshot.rows or columns <= count:
            larger = np.zeros((self.snapshot.rows, max(columns, count + 1)), np.bool_)
            larger[:rows, :columns] = self._hosts
            self._hosts = larger
        return self._hosts

    def scores(self, spec: RequestSpec, found: Candidates) -> WideArray:
        """Score as published: nodes with only this kind of pod, with others too, empty ones, all others."""
        if not found.columns.shape[1]:
            return np.zeros(len(found))
        group = _group(spec)
        hosts = self._sized(group)[found.rows]
        kinds, same = hosts.sum(axis=1), hosts[:, group]
        tier = np.where(same, np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        free = self.snapshot.residue[found.rows].sum(axis=1)
        return tier + 25 * (_LARGE_GPU - free) // _LARGE_GPU - found.before.max(axis=1) / 1e6

    def placed(self, spec: RequestSpec, row: int) -> None:
        """Note that the row now hosts this kind of pod."""
        if spec.wants_gpu:
            self._sized(_group(spec))[row, _group(spec)] = True


def _group(spec: RequestSpec) -> int:
    """0 for a share of one GPU, else the number of GPUs."""
    count = int(spec.count.max(initial=0))
    return 0 if count == 1 and not spec.whole else count


def make_scorer(strategy: StrategyName, snapshot: Snapshot, dice: np.random.Generator) -> Scorer:
    """The scorer of a strategy."""
    if strategy is BaselineStrategy.RANDOM:
        return RandomChoiceScore(snapshot, dice)
    makers: dict[StrategyName, Callable[[Snapshot], Scorer]] = {
        PlacementStrategy.PACKING: PricedScore,
        PlacementStrategy.BEST_FIT: BestFitScore,
        PlacementStrategy.SPREAD: SpreadScore,
        PlacementStrategy.TOPOLOGY: TopologyScore,
        BaselineStrategy.DOT_PRODUCT: DotProductScore,
        BaselineStrategy.GPU_PACKING: GpuPackingScore,
        BaselineStrategy.GPU_CLUSTERING: GpuClusteringScore,
        BaselineStrategy.FGD: lambda snapshot: PricedScore(snapshot, fgd=True),
    }
    return makers[strategy](snapshot)


# For fewer candidates than this, plain Python is faster than numpy.
_FEW = 48


def best_per_row(rows: IntArray, scores: WideArray) -> IntArray:
    """For each row that occurs, where its best score is; the first of equals. `rows` is sorted."""
    if len(rows) <= _FEW:
        best: dict[int, int] = {}
        values: list[float] = scores.tolist()
        for at, row in enumerate(rows.tolist()):
            if row not in best or values[at] > values[best[row]]:
                best[row] = at
        return np.fromiter(best.values(), np.int64, len(best))
    new = np.empty(len(rows), np.bool_)
    new[0] = True
    np.not_equal(rows[1:], rows[:-1], out=new[1:])
    group = np.cumsum(new) - 1
    top = np.maximum.reduceat(scores, np.flatnonzero(new))
    at = np.flatnonzero(scores == top[group])
    _, first = np.unique(group[at], return_index=True)
    return at[first]
