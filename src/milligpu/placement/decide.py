"""Decide where a request goes: the result is a grant, or the reasons why no GPU fits.

Scores are kept per spec and row. A change touches one row, so only the rows that changed since a spec was last
placed are scored again. A decision costs little more than finding a maximum.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, repeat
from zlib import crc32

import numpy as np

from milligpu.model.affinity import AffinityLabels
from milligpu.model.footprint import Footprint, GpuDemand
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.policy import DEFAULT_POLICY, PlacementStrategy, SharePolicy
from milligpu.model.request import ContainerRequest, PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement import refuse
from milligpu.placement.fit import Candidates, Fitter, RequestKey, RequestSpec, fold
from milligpu.placement.packing import WideArray
from milligpu.placement.score import Scorer, StrategyName, TieBreak, best_per_row, make_scorer
from milligpu.placement.snapshot import BoolArray, Holding, IntArray, RowState, Snapshot
from milligpu.placement.workload import ExpectedWorkload

# Prices follow the cluster: they are set again after this many requests, and sooner while few were seen.
REPRICE_EVERY = 500
REPRICE_FIRST = 8
# Scores of one spec for 5,000 nodes are 320 KB; a cluster has a few hundred specs.
_COLUMNS_MAX = 512
# If more rows than this fit, only a random part of them is scored: with a tenth of the nodes, allocation is two
# hundredths of a percent lower.
LOOK_AT = 1024
_SPECS_MAX = 4096
# States of rows whose score is remembered for a spec, some 400 bytes each; a node of one workload has a few dozen.
_ALIKE_MAX = 256
_NO_LABELS = AffinityLabels()
_NO_ROWS: IntArray = np.zeros(0, np.int64)


class _Column:
    """One spec's best placement on every row that was scored."""

    def __init__(self, rows: int, width: int) -> None:
        self.score = np.full(rows, -np.inf)
        self.columns: IntArray = np.zeros((rows, width), np.int64)
        self.seen = -1
        self.partial = False
        """Whether there are rows that fit and were not scored."""
        self._alike: dict[RowState, tuple[float, IntArray]] = {}

    def recall(self, row: int, state: RowState) -> bool:
        """Reuse the result of an earlier row in this state: pods of one template fill nodes in the same way."""
        known = self._alike.get(state)
        if known is None:
            return False
        self.score[row], self.columns[row] = known
        return True

    def remember(self, row: int, state: RowState) -> None:
        """Keep the result of a row for the next row in this state."""
        if len(self._alike) >= _ALIKE_MAX:
            self._alike.clear()
        self._alike[state] = float(self.score[row]), self.columns[row].copy()

    def put(self, rows: IntArray | None, found: Candidates, scores: WideArray) -> None:
        """Replace the results of these rows, or of all rows if None."""
        if rows is not None and len(rows) == 1:
            row = int(rows[0])
            self.score[row] = -np.inf
            if len(found):
                at = int(scores.argmax())
                self.score[row], self.columns[row] = scores[at], found.columns[at]
            return
        self.score[slice(None) if rows is None else rows] = -np.inf
        best = best_per_row(found.rows, scores)
        self.score[found.rows[best]] = scores[best]
        self.columns[found.rows[best]] = found.columns[best]


class Placer:
    """Decides over a snapshot and keeps it up to date: `decide` only reads, `commit` and `release` change it."""

    def __init__(
        self,
        snapshot: Snapshot,
        strategy: StrategyName = PlacementStrategy.PACKING,
        *,
        target: ExpectedWorkload | None = None,
        classes: GpuClasses = NO_CLASSES,
        dice: np.random.Generator | None = None,
        look_at: int = LOOK_AT,
    ) -> None:
        """`classes` are those of the cluster; `dice` is for the random strategy."""
        self._look_at = look_at
        self.snapshot = snapshot
        self.strategy = strategy
        self.target = target or ExpectedWorkload()
        self.classes = classes
        self.fitter = Fitter(snapshot)
        self._dice = dice or np.random.default_rng(0)
        self._scorers: dict[StrategyName, Scorer] = {}
        self._specs: dict[RequestKey, RequestSpec] = {}
        self._columns: OrderedDict[tuple[StrategyName, RequestKey], _Column] = OrderedDict()
        # A request is observed, placed and committed in a row.
        self._last: tuple[PodRequest, RequestSpec] | None = None
        self._folds: dict[tuple[tuple[ContainerRequest, ...], SharePolicy | None, int], Footprint] = {}
        self._layout = -1
        self._order: IntArray = np.zeros(0, np.int64)
        self._observed = 0
        self._next_price = REPRICE_EVERY if self.target.fixed else REPRICE_FIRST
        self._refresh_layout()

    # -- asking ------------------------------------------------------------------------------------------------

    def decide(self, request: PodRequest, among: Iterable[str] | None = None) -> Grant | NoFit:
        """Return where the request should go, among all nodes or only these; changes nothing."""
        names = None if among is None else list(among)
        grant = self.place(request, names)
        return grant if grant is not None else self.explain(request, names)

    def place(self, request: PodRequest, among: Iterable[str] | None = None) -> Grant | None:
        """Decide without the reasons: None if no GPU fits."""
        rows = self._allowed(among)
        placed = (self.place_on(asked, rows) for asked in self.alternatives(request))
        return next((grant for grant in placed if grant is not None), None)

    def alternatives(self, request: PodRequest) -> tuple[PodRequest, ...]:
        """Return the request for its class, then for each fallback; BadRequest if the class does not exist."""
        if request.gpu_class is None:
            return (request,)
        self.classes.check("class", request.gpu_class)
        fallbacks = self.classes.chain(request.gpu_class)[1:]
        return (request, *(replace(request, gpu_class=name) for name in fallbacks))

    def place_on(self, request: PodRequest, rows: BoolArray | None) -> Grant | None:
        """Place by the request's own class, on nodes whose rows were looked up before (`mask`); None means all."""
        self._refresh_layout()
        chosen = self._choose(request, rows)
        return None if chosen is None else self._grant(request, *chosen)

    def fitting(self, request: PodRequest, allowed: BoolArray | None) -> tuple[IntArray, WideArray]:
        """Return all rows on which the request fits by its own class, and the score of each."""
        self._refresh_layout()
        strategy = request.strategy or self.strategy
        spec = self.spec(request)
        column = self._column(strategy, spec, request.locality)
        if column.partial:
            column = self._fresh(self._scorer(strategy), spec, None, everywhere=True)
            self._columns[strategy, spec.key] = column
        fits = (column.score > -np.inf) & (self.snapshot.memory >= request.memory_mib)
        rows = np.flatnonzero(fits if allowed is None else fits & allowed)
        return rows, column.score[rows]

    def mask(self, names: Iterable[str]) -> BoolArray:
        """The rows of these nodes, for repeated calls of `place_on`; valid until nodes are added or removed."""
        self._refresh_layout()
        mask = np.zeros(self.snapshot.rows, np.bool_)
        known = map(self.snapshot.rows_of.get, names, repeat(()))
        mask[np.fromiter(chain.from_iterable(known), np.intp)] = True
        return mask

    def explain(self, request: PodRequest, among: Iterable[str] | None = None) -> NoFit:
        """Say for each GPU why the request does not fit; GPUs that fit are not listed."""
        self._refresh_layout()
        return refuse.explain(self, request, among)

    def spec(self, request: PodRequest) -> RequestSpec:
        """The request in numbers."""
        if self._last is None or self._last[0] is not request:
            self._last = request, self._spec(request)
        return self._last[1]

    def _spec(self, request: PodRequest) -> RequestSpec:
        return self._spec_of(RequestKey.of(request, self.classes))

    def _spec_of(self, key: RequestKey) -> RequestSpec:
        spec = self._specs.get(key)
        if spec is None:
            if len(self._specs) >= _SPECS_MAX:
                self._specs.clear()
            spec = self._specs[key] = RequestSpec(key, self.snapshot)
        return spec

    def fits(self, request: PodRequest, among: Iterable[str] | None = None) -> bool:
        """Whether there is any way to place it."""
        rows = self._allowed(among)
        return any(self._choose(asked, rows) is not None for asked in self.alternatives(request))

    def _allowed(self, among: Iterable[str] | None) -> BoolArray | None:
        self._refresh_layout()
        return None if among is None else self.mask(among)

    def _choose(self, request: PodRequest, allowed: BoolArray | None) -> tuple[int, IntArray] | None:
        strategy = request.strategy or self.strategy
        spec = self.spec(request)
        column = self._column(strategy, spec, request.locality)
        rows = self._best_rows(column.score, request.memory_mib, allowed)
        if not len(rows):
            return self._look_everywhere(strategy, request, allowed) if column.partial else None
        row = self._among_equals(strategy, rows, request)
        count = int(spec.count[self.snapshot.kind[row]]) if spec.wants_gpu else 0
        columns = column.columns[row, :count]
        return row, self._linked(spec, row, columns)

    def _best_rows(self, score: WideArray, mib: int, allowed: BoolArray | None) -> IntArray:
        """The rows with the best score among those that have the memory and are allowed."""
        memory = self.snapshot.memory
        if allowed is None:
            # A node's memory is seldom short, so check it only on the rows with the best score first.
            best = score.max(initial=-np.inf)
            rows = (score == best).nonzero()[0] if best > -np.inf else _NO_ROWS
            rows = rows[memory[rows] >= mib]
            if len(rows) or best == -np.inf:
                return rows
        room = memory >= mib
        score = np.where(room if allowed is None else room & allowed, score, -np.inf)
        best = score.max(initial=-np.inf)
        return (score == best).nonzero()[0] if best > -np.inf else _NO_ROWS

    def _look_everywhere(
        self, strategy: StrategyName, request: PodRequest, allowed: BoolArray | None
    ) -> tuple[int, IntArray] | None:
        """Score all rows and choose again, because none of the scored rows can be used."""
        spec = self.spec(request)
        self._columns[strategy, spec.key] = self._fresh(self._scorer(strategy), spec, None, everywhere=True)
        return self._choose(request, allowed)

    def _among_equals(self, strategy: StrategyName, rows: IntArray, request: PodRequest) -> int:
        if len(rows) == 1:
            return int(rows[0])
        if self._scorer(strategy).ties is TieBreak.NAME:
            return int(rows[np.argmin(self._order[rows])])
        # The pod's name is mixed into the nodes' noise, so ties break differently per pod, but always the same way.
        lot = np.uint64(crc32(f"{request.pod}{request.pod.uid}".encode()) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (self.snapshot.key[rows] ^ lot) * np.uint64(0xD6E8FEB86659FD93)
        return int(rows[np.argmax(mixed ^ (mixed >> np.uint64(32)))])

    def _linked(self, spec: RequestSpec, row: int, columns: IntArray) -> IntArray:
        """Choose the best-linked of the free GPUs, because whole GPUs all score the same."""
        if len(columns) <= 1 or not spec.whole or spec.uneven or spec.grouped:
            return columns
        cells = self.fitter.cells(spec, np.array([row]), None)[0]
        bits = sum(1 << int(column) for column in np.flatnonzero(cells))
        group = self.fitter.group(self.snapshot.wiring[row], bits, len(columns), nvlink=False, numa=False)
        return columns if group is None else np.array(group)

    # -- scores ------------------------------------------------------------------------------------------------

    def _scorer(self, strategy: StrategyName) -> Scorer:
        if strategy not in self._scorers:
            self._scorers[strategy] = make_scorer(strategy, self.snapshot, self._dice)
            self._reprice(self._scorers[strategy])
        return self._scorers[strategy]

    def _column(self, strategy: StrategyName, spec: RequestSpec, locality: AffinityLabels) -> _Column:
        scorer = self._scorer(strategy)
        if locality != _NO_LABELS:
            return self._fresh(scorer, spec, locality)
        if not scorer.lasting:
            return self._fresh(scorer, spec, None)
        column = self._columns.get((strategy, spec.key))
        if column is None:
            column = self._columns[strategy, spec.key] = self._fresh(scorer, spec, None)
            if len(self._columns) > _COLUMNS_MAX:
                self._columns.popitem(last=False)
            return column
        self._columns.move_to_end((strategy, spec.key))
        changed = self.snapshot.changed_since(column.seen)
        if changed is None:
            column = self._columns[strategy, spec.key] = self._fresh(scorer, spec, None)
        elif changed:
            self._update(scorer, spec, column, changed)
            column.seen = self.snapshot.now
        return column

    def _update(self, scorer: Scorer, spec: RequestSpec, column: _Column, changed: list[int]) -> None:
        """Score the rows that changed: most often a single one, in a state that another row had before."""
        alike = scorer.alike and spec.simple and len(changed) == 1
        state = self.snapshot.row_state(changed[0]) if alike else None
        if state is not None and column.recall(changed[0], state):
            return
        rows = np.array(sorted(changed))
        found = self.fitter.find(spec, rows, linked=scorer.linked)
        column.put(rows, found, scorer.scores(spec, found))
        if state is not None:
            column.remember(changed[0], state)

    def _fresh(
        self, scorer: Scorer, spec: RequestSpec, locality: AffinityLabels | None, *, everywhere: bool = False
    ) -> _Column:
        column = _Column(self.snapshot.rows, spec.most)
        found = self.fitter.find(spec, None, locality, linked=scorer.linked)
        # Columns of labeled requests are not kept and cannot be completed later, so all their rows are scored.
        if scorer.sampled and locality is None and not everywhere and len(found) > self._look_at:
            fits = len(np.unique(found.rows))
            if fits > self._look_at:
                lot = np.uint64(crc32(repr(spec.key).encode()) * 0x9E3779B97F4A7C15 % 2**64)
                mixed = (self.snapshot.key[found.rows] ^ lot) * np.uint64(0xD6E8FEB86659FD93)
                found = found.only((mixed >> np.uint64(11)) * 2.0**-53 < self._look_at / fits)
                column.partial = True
        column.put(None, found, scorer.scores(spec, found))
        column.seen = self.snapshot.now
        return column

    def _refresh_layout(self) -> None:
        """Start over with what is kept per row or kind, because nodes were added or removed."""
        if self._layout == self.snapshot.rows_version:
            return
        self._layout = self.snapshot.rows_version
        self._columns.clear()
        self._folds.clear()
        self._last = None
        for spec in self._specs.values():
            spec.learn(self.snapshot)
        names = self.snapshot.node_names
        self._order = np.empty(len(names), np.int64)
        self._order[np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)] = np.arange(len(names))
        for scorer in self._scorers.values():
            self._reprice(scorer)

    def set_classes(self, classes: GpuClasses) -> None:
        """The cluster's classes changed."""
        self.classes = classes
        self._last = None

    # -- learning ----------------------------------------------------------------------------------------------

    def observe(self, request: PodRequest) -> None:
        """Learn from a new request, placed or not: call it once per request, not per attempt."""
        self.target.observe(self.spec(request).key)
        self._observed += 1
        if self._observed >= self._next_price:
            self._next_price = self._observed + min(self._observed, REPRICE_EVERY)
            self.reprice()

    def reprice(self) -> None:
        """Set the prices again now."""
        self._refresh_layout()
        for scorer in self._scorers.values():
            self._reprice(scorer)
        self._columns.clear()

    def _reprice(self, scorer: Scorer) -> None:
        counts = self.target.counts(kind.model for kind in self.snapshot.kinds if kind.model)
        scorer.reprice(counts, {key: self._spec_of(key) for key in counts})

    # -- changing ----------------------------------------------------------------------------------------------

    def _grant(self, request: PodRequest, row: int, columns: IntArray) -> Grant:
        snap = self.snapshot
        if not request.wants_gpu:
            return Grant(request.pod.uid, snap.node_names[row], {}, priority=request.priority)
        folded = self._fold(request, row)
        uuids = [snap.uuids[row][int(column)] for column in columns]
        # Columns are in the order of the largest demand first.
        order = sorted(range(len(folded.demands)), key=lambda n: _size(folded.demands[n]), reverse=True)
        gpu = {number: uuids[at] for at, number in enumerate(order)}
        policy = request.policy or DEFAULT_POLICY
        return Grant(
            request.pod.uid,
            snap.node_names[row],
            _shares(folded, gpu),
            policy,
            request.priority,
            gpu_class=request.gpu_class,
        )

    def _fold(self, request: PodRequest, row: int) -> Footprint:
        key = request.containers, request.policy, int(self.snapshot.kind[row])
        found = self._folds.get(key)
        if found is None:
            if len(self._folds) >= _SPECS_MAX:
                self._folds.clear()
            found = self._folds[key] = fold(request, self.snapshot, row)
        return found

    def commit(self, request: PodRequest, grant: Grant) -> Holding:
        """Count a grant. Raises if it would over-commit a GPU."""
        self._refresh_layout()
        holding = self.holding(request, grant)
        self.snapshot.take(holding)
        if self._scorers:
            spec = self.spec(_as_granted(request, grant))
            for scorer in self._scorers.values():
                scorer.placed(spec, self._row(grant))
        return holding

    def _row(self, grant: Grant) -> int:
        gpus = grant.gpus
        return self.snapshot.cell_of[grant.node, gpus[0]][0] if gpus else self.snapshot.rows_of[grant.node][0]

    def holding(self, request: PodRequest, grant: Grant) -> Holding:
        """Return what a granted request holds: on each GPU the most that its containers take at one time."""
        gpus: dict[str, GpuDemand] = {}
        if grant.gpus:
            folded = self._fold(request, self._row(grant))
            for name, parts in folded.slices.items():
                for (number, _), share in zip(parts, grant.containers[name], strict=True):
                    gpus[share.gpu] = folded.demands[number]
        return Holding(
            pod_key(request),
            grant.node,
            tuple(gpus.items()),
            request.cpu_milli,
            request.memory_mib,
            request.locality,
            request.priority,
        )

    def release(self, pod: str) -> Holding:
        """Release exactly what a pod held, because it ended."""
        return self.snapshot.release(pod)


def pod_key(request: PodRequest) -> str:
    """The name under which a pod's holding is kept: its uid, which no later pod has."""
    return request.pod.uid or str(request.pod)


def _as_granted(request: PodRequest, grant: Grant) -> PodRequest:
    """The request for the class whose GPU it got."""
    return request if request.gpu_class == grant.gpu_class else replace(request, gpu_class=grant.gpu_class)


def _size(demand: GpuDemand) -> tuple[Milli, Mib]:
    return demand.milli, demand.mib


def _shares(folded: Footprint, gpu: Mapping[int, str]) -> dict[str, tuple[GpuShare, ...]]:
    return {
        name: tuple(GpuShare(gpu[number], part) for number, part in parts) for name, parts in folded.slices.items()
    }
