"""Decide: one request in, a grant or the reasons why not out.

Scores are kept per spec and row. A change touches one row; a spec that is asked for again has only the rows
rescored that changed since it was last asked for. So a decision costs little more than finding a maximum.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from zlib import crc32

import numpy as np

from milligpu.model.errors import BadRequest
from milligpu.model.footprint import Demand, Footprint
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.labels import Locality
from milligpu.model.qos import Policy, Strategy
from milligpu.model.request import ContainerRequest, PodRequest
from milligpu.model.requirements import Requirements
from milligpu.model.units import Mib, Milli
from milligpu.placement import refuse
from milligpu.placement.fit import Fitter, Found, Spec, SpecKey, fold
from milligpu.placement.packing import WideArray
from milligpu.placement.score import PolicyName, Scorer, Ties, best_per_row, scorer
from milligpu.placement.snapshot import BoolArray, Holding, IntArray, RowState, Snapshot
from milligpu.placement.target import Target

# Prices follow the cluster: they are set anew after this many requests, and sooner while little was seen.
REPRICE_EVERY = 500
REPRICE_FIRST = 8
# Scores of one spec for 5,000 nodes are 320 KB; a cluster has a few hundred specs.
_COLUMNS_MAX = 512
# Of more rows than this that fit, a lot decides which are scored: looking at a tenth of the nodes costs two
# hundredths of a percent of allocation.
LOOK_AT = 1024
_SPECS_MAX = 4096
# States of rows whose score is remembered for a spec, some 400 bytes each; a node of one workload has a few dozen.
_ALIKE_MAX = 256
_NO_LABELS = Locality()
_NO_ROWS: IntArray = np.zeros(0, np.int64)


class _Column:
    """One spec's best way on every row, as far as it was looked at."""

    def __init__(self, rows: int, width: int) -> None:
        self.score = np.full(rows, -np.inf)
        self.columns: IntArray = np.zeros((rows, width), np.int64)
        self.seen = -1
        self.partial = False
        """Whether there are rows that fit and were not scored."""
        self._alike: dict[RowState, tuple[float, IntArray]] = {}

    def recall(self, row: int, state: RowState) -> bool:
        """Take over what a row in this state came to before; pods of one template fill one node like another."""
        known = self._alike.get(state)
        if known is None:
            return False
        self.score[row], self.columns[row] = known
        return True

    def remember(self, row: int, state: RowState) -> None:
        """For the next row that comes into this state."""
        if len(self._alike) >= _ALIKE_MAX:
            self._alike.clear()
        self._alike[state] = float(self.score[row]), self.columns[row].copy()

    def put(self, rows: IntArray | None, found: Found, scores: WideArray) -> None:
        """Replace what is known of these rows, or of all."""
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
    """Decides over a snapshot, and keeps it: `decide` asks, `commit` and `release` change."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: PolicyName = Strategy.PACKING,
        *,
        target: Target | None = None,
        classes: Mapping[str, Requirements] | None = None,
        dice: np.random.Generator | None = None,
        look_at: int = LOOK_AT,
    ) -> None:
        """`classes` are the requirements behind each class's name; `dice` is for the random policy."""
        self._look_at = look_at
        self.snapshot = snapshot
        self.policy = policy
        self.target = target or Target()
        self.classes = dict(classes or {})
        self.fitter = Fitter(snapshot)
        self._dice = dice or np.random.default_rng(0)
        self._scorers: dict[PolicyName, Scorer] = {}
        self._specs: dict[SpecKey, Spec] = {}
        self._columns: OrderedDict[tuple[PolicyName, SpecKey], _Column] = OrderedDict()
        # A request is observed, placed and committed in a row.
        self._last: tuple[PodRequest, Spec] | None = None
        self._folds: dict[tuple[tuple[ContainerRequest, ...], Policy | None, int], Footprint] = {}
        self._layout = -1
        self._order: IntArray = np.zeros(0, np.int64)
        self._observed = 0
        self._next_price = REPRICE_EVERY if self.target.fixed else REPRICE_FIRST
        self._refresh_layout()

    # -- asking ------------------------------------------------------------------------------------------------

    def decide(self, request: PodRequest, among: Iterable[str] | None = None) -> Grant | NoFit:
        """Where the request should go, among all nodes or those named; changes nothing."""
        names = None if among is None else list(among)
        grant = self.place(request, names)
        return grant if grant is not None else self.explain(request, names)

    def place(self, request: PodRequest, among: Iterable[str] | None = None) -> Grant | None:
        """As `decide`, without the reasons."""
        return self.place_on(request, self._allowed(among))

    def place_on(self, request: PodRequest, rows: BoolArray | None) -> Grant | None:
        """As `place`, for nodes whose rows were looked up before (`mask`); None is all."""
        self._refresh_layout()
        chosen = self._choose(request, rows)
        return None if chosen is None else self._grant(request, *chosen)

    def mask(self, names: Iterable[str]) -> BoolArray:
        """The rows of these nodes, to ask about them again and again; good until the layout changes."""
        self._refresh_layout()
        mask = np.zeros(self.snapshot.rows, np.bool_)
        known = map(self.snapshot.rows_of.get, names, repeat(()))
        mask[np.fromiter(chain.from_iterable(known), np.intp)] = True
        return mask

    def explain(self, request: PodRequest, among: Iterable[str] | None = None) -> NoFit:
        """Card by card why the request does not fit; cards that would do are not listed."""
        self._refresh_layout()
        return refuse.explain(self, request, among)

    def spec(self, request: PodRequest) -> Spec:
        """The request in numbers."""
        if self._last is None or self._last[0] is not request:
            self._last = request, self._spec(request)
        return self._last[1]

    def _spec(self, request: PodRequest) -> Spec:
        if request.gpu_class is not None and request.gpu_class not in self.classes:
            known = ", ".join(sorted(self.classes)) or "a class that is defined; there is none"
            raise BadRequest("class", request.gpu_class, known)
        return self._spec_of(SpecKey.of(request, self.classes))

    def _spec_of(self, key: SpecKey) -> Spec:
        spec = self._specs.get(key)
        if spec is None:
            if len(self._specs) >= _SPECS_MAX:
                self._specs.clear()
            spec = self._specs[key] = Spec(key, self.snapshot)
        return spec

    def fits(self, request: PodRequest, among: Iterable[str] | None = None) -> bool:
        """Whether there is any way to place it."""
        return self._choose(request, self._allowed(among)) is not None

    def _allowed(self, among: Iterable[str] | None) -> BoolArray | None:
        self._refresh_layout()
        return None if among is None else self.mask(among)

    def _choose(self, request: PodRequest, allowed: BoolArray | None) -> tuple[int, IntArray] | None:
        policy = request.strategy or self.policy
        spec = self.spec(request)
        column = self._column(policy, spec, request.locality)
        rows = self._best_rows(column.score, request.memory_mib, allowed)
        if not len(rows):
            return self._look_everywhere(policy, request, allowed) if column.partial else None
        row = self._among_equals(policy, rows, request)
        count = int(spec.count[self.snapshot.kind[row]]) if spec.wants_gpu else 0
        columns = column.columns[row, :count]
        return row, self._linked(spec, row, columns)

    def _best_rows(self, score: WideArray, mib: int, allowed: BoolArray | None) -> IntArray:
        """The rows with the best score among those that have the memory and are allowed."""
        memory = self.snapshot.memory
        if allowed is None:
            # A node's memory is seldom what is short: look at the best first, and at that only there.
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
        self, policy: PolicyName, request: PodRequest, allowed: BoolArray | None
    ) -> tuple[int, IntArray] | None:
        """Nothing was left among the rows that were scored: score all."""
        spec = self.spec(request)
        self._columns[policy, spec.key] = self._fresh(self._scorer(policy), spec, None, everywhere=True)
        return self._choose(request, allowed)

    def _among_equals(self, policy: PolicyName, rows: IntArray, request: PodRequest) -> int:
        if len(rows) == 1:
            return int(rows[0])
        if self._scorer(policy).ties is Ties.NAME:
            return int(rows[np.argmin(self._order[rows])])
        # Mixing the pod into the nodes' noise gives every pod a lot of its own, the same whenever it is asked.
        lot = np.uint64(crc32(f"{request.pod}{request.pod.uid}".encode()) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (self.snapshot.key[rows] ^ lot) * np.uint64(0xD6E8FEB86659FD93)
        return int(rows[np.argmax(mixed ^ (mixed >> np.uint64(32)))])

    def _linked(self, spec: Spec, row: int, columns: IntArray) -> IntArray:
        """Whole cards are all alike to the score; of those that are free take the best-linked."""
        if len(columns) <= 1 or not spec.whole or spec.uneven or spec.grouped:
            return columns
        cells = self.fitter.cells(spec, np.array([row]), None)[0]
        bits = sum(1 << int(column) for column in np.flatnonzero(cells))
        group = self.fitter.group(self.snapshot.wiring[row], bits, len(columns), nvlink=False, numa=False)
        return columns if group is None else np.array(group)

    # -- scores ------------------------------------------------------------------------------------------------

    def _scorer(self, policy: PolicyName) -> Scorer:
        if policy not in self._scorers:
            self._scorers[policy] = scorer(policy, self.snapshot, self._dice)
            self._reprice(self._scorers[policy])
        return self._scorers[policy]

    def _column(self, policy: PolicyName, spec: Spec, locality: Locality) -> _Column:
        judge = self._scorer(policy)
        if locality != _NO_LABELS:
            return self._fresh(judge, spec, locality)
        if not judge.lasting:
            return self._fresh(judge, spec, None)
        column = self._columns.get((policy, spec.key))
        if column is None:
            column = self._columns[policy, spec.key] = self._fresh(judge, spec, None)
            if len(self._columns) > _COLUMNS_MAX:
                self._columns.popitem(last=False)
            return column
        self._columns.move_to_end((policy, spec.key))
        changed = self.snapshot.changed_since(column.seen)
        if changed is None:
            column = self._columns[policy, spec.key] = self._fresh(judge, spec, None)
        elif changed:
            self._update(judge, spec, column, changed)
            column.seen = self.snapshot.now
        return column

    def _update(self, judge: Scorer, spec: Spec, column: _Column, changed: list[int]) -> None:
        """Score the rows that changed; most often it is one, and another was like it before."""
        alike = judge.alike and spec.simple and len(changed) == 1
        state = self.snapshot.row_state(changed[0]) if alike else None
        if state is not None and column.recall(changed[0], state):
            return
        rows = np.array(sorted(changed))
        found = self.fitter.find(spec, rows, linked=judge.linked)
        column.put(rows, found, judge.scores(spec, found))
        if state is not None:
            column.remember(changed[0], state)

    def _fresh(self, judge: Scorer, spec: Spec, locality: Locality | None, *, everywhere: bool = False) -> _Column:
        column = _Column(self.snapshot.rows, spec.most)
        found = self.fitter.find(spec, None, locality, linked=judge.linked)
        # What is not kept has no second chance: labelled requests look everywhere at once.
        if judge.sampled and locality is None and not everywhere and len(found) > self._look_at:
            fits = len(np.unique(found.rows))
            if fits > self._look_at:
                lot = np.uint64(crc32(repr(spec.key).encode()) * 0x9E3779B97F4A7C15 % 2**64)
                mixed = (self.snapshot.key[found.rows] ^ lot) * np.uint64(0xD6E8FEB86659FD93)
                found = found.only((mixed >> np.uint64(11)) * 2.0**-53 < self._look_at / fits)
                column.partial = True
        column.put(None, found, judge.scores(spec, found))
        column.seen = self.snapshot.now
        return column

    def _refresh_layout(self) -> None:
        """Nodes came or went: start over with what is kept per row or kind."""
        if self._layout == self.snapshot.layout:
            return
        self._layout = self.snapshot.layout
        self._columns.clear()
        self._folds.clear()
        self._last = None
        for spec in self._specs.values():
            spec.learn(self.snapshot)
        names = self.snapshot.node_names
        self._order = np.empty(len(names), np.int64)
        self._order[np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)] = np.arange(len(names))
        for judge in self._scorers.values():
            self._reprice(judge)

    # -- learning ----------------------------------------------------------------------------------------------

    def observe(self, request: PodRequest) -> None:
        """A new request came, whatever becomes of it: call it once for each, not for each attempt."""
        self.target.observe(self.spec(request).key)
        self._observed += 1
        if self._observed >= self._next_price:
            self._next_price = self._observed + min(self._observed, REPRICE_EVERY)
            self.reprice()

    def reprice(self) -> None:
        """Set prices anew now."""
        self._refresh_layout()
        for judge in self._scorers.values():
            self._reprice(judge)
        self._columns.clear()

    def _reprice(self, judge: Scorer) -> None:
        counts = self.target.counts(kind.model for kind in self.snapshot.kinds if kind.model)
        judge.reprice(counts, {key: self._spec_of(key) for key in counts})

    # -- changing ----------------------------------------------------------------------------------------------

    def _grant(self, request: PodRequest, row: int, columns: IntArray) -> Grant:
        snap = self.snapshot
        if not request.wants_gpu:
            return Grant(request.pod.uid, snap.node_names[row], {}, priority=request.priority)
        folded = self._fold(request, row)
        uuids = [snap.uuids[row][int(column)] for column in columns]
        # Columns are in the order of the largest demand first.
        order = sorted(range(len(folded.demands)), key=lambda n: _size(folded.demands[n]), reverse=True)
        card = {number: uuids[at] for at, number in enumerate(order)}
        policy = request.policy or snap.kinds[int(snap.kind[row])].policy
        return Grant(request.pod.uid, snap.node_names[row], _shares(folded, card), policy, request.priority)

    def _fold(self, request: PodRequest, row: int) -> Footprint:
        key = request.containers, request.policy, int(self.snapshot.kind[row])
        found = self._folds.get(key)
        if found is None:
            if len(self._folds) >= _SPECS_MAX:
                self._folds.clear()
            found = self._folds[key] = fold(request, self.snapshot, row)
        return found

    def commit(self, request: PodRequest, grant: Grant) -> Holding:
        """Book a grant; refused where it would over-commit a card."""
        self._refresh_layout()
        holding = self.holding(request, grant)
        self.snapshot.take(holding)
        if self._scorers:
            spec = self.spec(request)
            for judge in self._scorers.values():
                judge.placed(spec, self._row(grant))
        return holding

    def _row(self, grant: Grant) -> int:
        gpus = grant.gpus
        return self.snapshot.cell_of[grant.node, gpus[0]][0] if gpus else self.snapshot.rows_of[grant.node][0]

    def holding(self, request: PodRequest, grant: Grant) -> Holding:
        """What a granted request holds: its peak on each card, as its containers come and go."""
        cards: dict[str, Demand] = {}
        if grant.gpus:
            folded = self._fold(request, self._row(grant))
            for name, parts in folded.slices.items():
                for (number, _), share in zip(parts, grant.containers[name], strict=True):
                    cards[share.gpu] = folded.demands[number]
        return Holding(
            pod_key(request),
            grant.node,
            tuple(cards.items()),
            request.cpu_milli,
            request.memory_mib,
            request.locality,
            request.priority,
        )

    def release(self, pod: str) -> Holding:
        """A pod ended: give back what it held, exactly."""
        return self.snapshot.release(pod)


def pod_key(request: PodRequest) -> str:
    """The name under which a pod's holding is kept: its uid, which no later pod has."""
    return request.pod.uid or str(request.pod)


def _size(demand: Demand) -> tuple[Milli, Mib]:
    return demand.milli, demand.mib


def _shares(folded: Footprint, card: Mapping[int, str]) -> dict[str, tuple[GpuShare, ...]]:
    return {
        name: tuple(
            GpuShare(card[number], whole=True)
            if part.whole
            else GpuShare(card[number], part.milli, part.mib, part.limit)
            for number, part in parts
        )
        for name, parts in folded.slices.items()
    }
