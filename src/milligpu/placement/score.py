"""How to choose among the ways that fit: one small class per strategy, the packing one in a module of its own.

Besides the strategies that users choose there are the baselines of the literature, for comparison in simulations.
A score is a number per way to place a spec, higher is better; ties go by the rule the class names.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

import numpy as np

from milligpu.model.qos import Strategy
from milligpu.model.units import WHOLE
from milligpu.placement.fit import Found, Spec, SpecKey
from milligpu.placement.groups import group_quality
from milligpu.placement.packing import FGD, PACKING, Packing, WideArray
from milligpu.placement.snapshot import UNCOUNTED, BoolArray, IntArray, Snapshot


class Baseline(StrEnum):
    """Policies that others published; good for comparing, not offered to pods."""

    RANDOM = "random"
    DOT_PRODUCT = "dot-product"
    GPU_PACKING = "gpu-packing"
    GPU_CLUSTERING = "gpu-clustering"
    FGD = "fgd"


PolicyName = Strategy | Baseline
POLICIES: tuple[PolicyName, ...] = (*Strategy, *Baseline)


class Ties(StrEnum):
    """Who wins among equals."""

    NOISE = "noise"
    """Each equally often, as if by lot, but the same for the same request and snapshot."""
    NAME = "name"
    """The first by name, as the published results have it."""


class Scorer(Protocol):
    """Scores ways of placing a spec."""

    ties: Ties
    lasting: bool
    """Whether a row's scores stay the same until the row changes or prices do."""
    linked: bool
    """Whether several cards should be those with the best links, rather than the fullest."""
    sampled: bool
    """Whether it may look at some of the rows of a large cluster, because a look at each takes long."""
    alike: bool
    """Whether rows of one kind with the same left of CPU and of each card score the same."""

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """One number for each way that was found."""
        ...

    def placed(self, spec: Spec, row: int) -> None:
        """A pod of this spec went to this row."""
        ...

    def reprice(self, counts: Mapping[SpecKey, float], specs: Mapping[SpecKey, Spec]) -> None:
        """The expected workload, or the room for it, has changed."""
        ...


class _Plain:
    """What most scorers have in common: they expect nothing and remember nothing."""

    ties = Ties.NAME
    lasting = True
    linked = False
    sampled = False
    alike = False

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def placed(self, spec: Spec, row: int) -> None:
        """Nothing to remember."""

    def reprice(self, counts: Mapping[SpecKey, float], specs: Mapping[SpecKey, Spec]) -> None:
        """Nothing to expect."""

    def _left(self, spec: Spec, found: Found) -> tuple[WideArray, WideArray]:
        """CPU and GPU left on the row after each way, as parts of a large node (128 cores, 8 GPUs)."""
        snap = self.snapshot
        cpu = np.where(snap.cpu < UNCOUNTED // 2, snap.cpu, 0)[found.rows] - spec.cpu
        gpu = snap.residue[found.rows].sum(axis=1) - (found.before - found.after).sum(axis=1)
        return cpu / _LARGE_CPU, gpu / _LARGE_GPU


_LARGE_CPU, _LARGE_GPU = 128_000, 8_000


class Priced(_Plain):
    """The packing score with ties by lot, or FGD as published with ties by name."""

    alike = True

    def __init__(self, snapshot: Snapshot, *, fgd: bool = False) -> None:
        super().__init__(snapshot)
        self.ties = Ties.NAME if fgd else Ties.NOISE
        self.sampled = not fgd
        self._packing = Packing(snapshot, FGD if fgd else PACKING)

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """See the packing module."""
        return self._packing.scores(spec, found)

    def reprice(self, counts: Mapping[SpecKey, float], specs: Mapping[SpecKey, Spec]) -> None:
        """Set the prices anew."""
        self._packing.reprice(counts, specs)


class BestFit(_Plain):
    """The node with the least left, CPU and GPU alike; on it the fullest card that fits."""

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """In percent, as published; the card decides below that."""
        cpu, gpu = self._left(spec, found)
        return np.floor((1 - (cpu + gpu) / 2) * 100) - found.before.sum(axis=1) / 1e6


class Spread(_Plain):
    """The emptiest card, then the emptiest node: least interference now."""

    ties = Ties.NOISE

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """What is left of the card that is fullest afterwards."""
        cpu, gpu = self._left(spec, found)
        if not found.after.shape[1]:
            return cpu
        return found.after.min(axis=1) + (cpu + gpu) / 4


class Topology(_Plain):
    """The group of cards with the best links; for a single card, where it breaks up the least."""

    ties = Ties.NOISE
    linked = True

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """The weakest link first, then all links, then the NUMA nodes; among equals the fullest node."""
        cpu, gpu = self._left(spec, found)
        fullness = 1 - (cpu + gpu) / 2
        if found.columns.shape[1] <= 1:
            return fullness - found.before.sum(axis=1) / _LARGE_GPU
        wiring = self.snapshot.wiring
        quality: list[float] = []
        for row, columns in zip(found.rows, found.columns, strict=True):
            weakest, total, numa = group_quality(wiring[int(row)], tuple(dict.fromkeys(map(int, columns))))
            quality.append(weakest * 1e6 + total * 100 + numa * 10)
        return np.array(quality) + fullness


class RandomChoice(_Plain):
    """Any way that fits."""

    lasting = False

    def __init__(self, snapshot: Snapshot, dice: np.random.Generator) -> None:
        super().__init__(snapshot)
        self._dice = dice

    def scores(self, spec: Spec, found: Found) -> WideArray:  # noqa: ARG002
        """A throw each."""
        return self._dice.random(len(found))


class DotProduct(_Plain):
    """Where what is asked points away from what is free."""

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """As published, in percent."""
        snap = self.snapshot
        cpu, gpu = self._left(spec, found)
        asked_cpu = spec.cpu / _LARGE_CPU
        asked_gpu = (found.before - found.after).sum(axis=1) / _LARGE_GPU
        product = (cpu + asked_cpu) * asked_cpu + (gpu + asked_gpu) * asked_gpu
        tightest = snap.residue[found.rows[:, None], found.columns].sum(axis=1) / 1e6
        return np.floor(100 * (1 - product / 2)) - tightest


class GpuPacking(_Plain):
    """First cards in use, then idle cards of nodes in use, then idle nodes."""

    def scores(self, spec: Spec, found: Found) -> WideArray:  # noqa: ARG002
        """The three tiers as published; the fullest card within a tier."""
        snap = self.snapshot
        if not found.columns.shape[1]:
            return np.zeros(len(found))
        width = np.array([len(uuids) for uuids in snap.uuids])[found.rows]
        idle = (snap.residue[found.rows] == WHOLE).sum(axis=1)
        largest = found.before.max(axis=1)
        in_use: IntArray = np.maximum(100 - largest // 100, 50)
        in_use[largest == WHOLE] = max(50 - found.columns.shape[1], 33)
        return np.where(idle == width, np.maximum(33 - idle, idle), in_use) - largest / 1e6


class GpuClustering(_Plain):
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

    def scores(self, spec: Spec, found: Found) -> WideArray:
        """As published: alone with its kind, among others, nowhere, elsewhere."""
        if not found.columns.shape[1]:
            return np.zeros(len(found))
        group = _group(spec)
        hosts = self._sized(group)[found.rows]
        kinds, same = hosts.sum(axis=1), hosts[:, group]
        tier = np.where(same, np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
        free = self.snapshot.residue[found.rows].sum(axis=1)
        return tier + 25 * (_LARGE_GPU - free) // _LARGE_GPU - found.before.max(axis=1) / 1e6

    def placed(self, spec: Spec, row: int) -> None:
        """The row now hosts this kind of pod."""
        if spec.wants_gpu:
            self._sized(_group(spec))[row, _group(spec)] = True


def _group(spec: Spec) -> int:
    """0 for a share of one card, else the number of cards."""
    count = int(spec.count.max(initial=0))
    return 0 if count == 1 and not spec.whole else count


def scorer(policy: PolicyName, snapshot: Snapshot, dice: np.random.Generator) -> Scorer:
    """The scorer of a policy."""
    if policy is Baseline.RANDOM:
        return RandomChoice(snapshot, dice)
    makers: dict[PolicyName, Callable[[Snapshot], Scorer]] = {
        Strategy.PACKING: Priced,
        Strategy.BEST_FIT: BestFit,
        Strategy.SPREAD: Spread,
        Strategy.TOPOLOGY: Topology,
        Baseline.DOT_PRODUCT: DotProduct,
        Baseline.GPU_PACKING: GpuPacking,
        Baseline.GPU_CLUSTERING: GpuClustering,
        Baseline.FGD: lambda books: Priced(books, fgd=True),
    }
    return makers[policy](snapshot)


# Below this many ways, plain Python is done before numpy has started.
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
