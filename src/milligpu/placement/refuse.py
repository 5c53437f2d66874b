"""Why nothing fits: for each card the first reason that holds, for each node what it lacks, and what would fit.

Reasons that never change come before those that pass, so that nobody waits for a card of the wrong model.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from milligpu.model.gpu import State
from milligpu.model.grant import NoFit
from milligpu.model.labels import Locality
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import WHOLE, Mib, Milli, show_mib, show_milli
from milligpu.placement.fit import Fitter, Spec, SpecKey
from milligpu.placement.snapshot import NOBODY, IntArray, Snapshot

# A refusal of every card of a large cluster would take longer than the decision; beyond this, the best of each
# node speaks for the node.
_CARDS_MAX = 4096


class Asked(Protocol):
    """What is asked: the books, and how requests become numbers."""

    snapshot: Snapshot
    fitter: Fitter

    def spec(self, request: PodRequest) -> Spec:
        """The request in numbers."""
        ...


def explain(placer: Asked, request: PodRequest, among: Iterable[str] | None = None) -> NoFit:
    """All reasons, with numbers, and the nearest request that would fit."""
    steps = gradually(placer, request, among)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


# Some milliseconds of work.
_ROWS_PER_STEP = 32


def gradually(
    placer: Asked, request: PodRequest, among: Iterable[str] | None = None
) -> Generator[None, None, NoFit]:
    """As `explain`, in small steps: the whole of a large cluster takes half a second, in which others want answers.

    The books may be written between steps, but nodes may not come or go.
    """
    snap = placer.snapshot
    nodes = list(snap.nodes) if among is None else [name for name in among if name in snap.nodes]
    rows = [row for name in nodes for row in snap.rows_of[name]]
    spec = placer.spec(request)
    every_card = sum(len(snap.uuids[row]) for row in rows) <= _CARDS_MAX
    judge = _Judge(placer, request, spec, every_card=every_card)
    refusals: list[Refusal] = []
    for at in range(0, len(rows), _ROWS_PER_STEP):
        refusals += [refusal for row in rows[at : at + _ROWS_PER_STEP] for refusal in judge.row(row)]
        yield
    near = nearest(placer, request, np.array(rows, np.int64))
    return NoFit(tuple(refusals), len(nodes), "" if near is None else describe(near, request))


class _Judge:
    """Gives the reasons of one request, row by row."""

    def __init__(self, placer: Asked, request: PodRequest, spec: Spec, *, every_card: bool) -> None:
        self.snap = placer.snapshot
        self.fitter = placer.fitter
        self.request = request
        self.spec = spec
        self.every_card = every_card
        locality = request.locality
        self.exclusion = self.snap.label_number(locality.exclusion)
        self.apart = set(self.snap.cells_with(anti_affinity=locality.anti_affinity))
        self.together = set(self.snap.cells_with(affinity=locality.affinity))

    def row(self, row: int) -> Iterator[Refusal]:
        """Why a row will not do; nothing if it would."""
        snap, spec = self.snap, self.spec
        node = snap.node_names[row]
        if not spec.wants_gpu:
            yield from self._node(row)
            return
        if not snap.uuids[row]:
            yield Refusal(Reason.NO_GPU, node)
            return
        refusals = {column: self._card(row, column) for column in range(len(snap.uuids[row]))}
        bad = [refusal for refusal in refusals.values() if refusal is not None]
        yield from bad if self.every_card else bad and [max(bad, key=_nearness)]
        count, good = int(spec.count[snap.kind[row]]), len(refusals) - len(bad)
        if 0 < good < count:
            yield Refusal(Reason.INSUFFICIENT_GPUS, node, "", count, good)
        elif good and not len(self._ways(row)):
            yield from self._node(row) or [self._group(node, count, good)]
        elif good:
            yield from self._node(row)

    def _ways(self, row: int) -> IntArray:
        # The CPU is judged apart: here only the cards count.
        spec = Spec(replace(self.spec.key, cpu_milli=0), self.snap)
        labels = None if self.request.locality == Locality() else self.request.locality
        return self.fitter.find(spec, np.array([row]), labels).rows

    def _group(self, node: str, count: int, good: int) -> Refusal:
        wants = self.spec.key.requirements
        if wants.nvlink:
            return Refusal(Reason.NO_NVLINK, node)
        return (
            Refusal(Reason.NUMA_SPLIT, node)
            if wants.numa
            else Refusal(Reason.INSUFFICIENT_GPUS, node, "", count, min(good, count - 1))
        )

    def _node(self, row: int) -> list[Refusal]:
        snap, request = self.snap, self.request
        node = snap.node_names[row]
        lacks: list[Refusal] = []
        if snap.cpu[row] < request.cpu_milli:
            lacks.append(Refusal(Reason.NODE_CPU, node, "", request.cpu_milli, max(0, int(snap.cpu[row]))))
        if snap.memory[row] < request.memory_mib:
            lacks.append(Refusal(Reason.NODE_MEMORY, node, "", request.memory_mib, max(0, int(snap.memory[row]))))
        return lacks

    def _card(self, row: int, column: int) -> Refusal | None:
        snap = self.snap
        node, uuid, cell = snap.node_names[row], snap.uuids[row][column], (row, column)
        need = self.spec.needs[int(snap.kind[row])]
        if need.reason is not None:
            return Refusal(need.reason, node, uuid, need.wanted, need.best)
        wants = self.spec.key.requirements
        if (wants.uuids is not None and uuid not in wants.uuids) or uuid in wants.uuids_not:
            return Refusal(Reason.UUID_MISMATCH, node, uuid)
        state = snap.state(node, uuid)
        if state is not State.OK:
            return Refusal(Reason.SICK if state is State.SICK else Reason.CORDONED, node, uuid)
        reason = self._label(cell)
        if reason is not None:
            return Refusal(reason, node, uuid)
        return self._room(cell, node, uuid)

    def _label(self, cell: tuple[int, int]) -> Reason | None:
        if cell in self.apart:
            return Reason.ANTI_AFFINITY
        if self.snap.exclusion[cell] not in (NOBODY, self.exclusion):
            return Reason.EXCLUSION
        return Reason.AFFINITY if self.together and cell not in self.together else None

    def _room(self, cell: tuple[int, int], node: str, uuid: str) -> Refusal | None:
        snap = self.snap
        # Of unlike demands the smallest: a card that cannot take even that is no use to the request.
        demand = self.spec.needs[int(snap.kind[cell[0]])].demands[-1]
        milli, mib = max(0, int(snap.milli[cell])), max(0, int(snap.mib[cell]))
        if milli < demand.milli or (demand.whole and snap.tenants[cell]):
            best = min(milli, demand.milli - 1) if demand.whole else milli
            return Refusal(Reason.INSUFFICIENT_CORE, node, uuid, demand.milli, best)
        if mib < demand.mib:
            return Refusal(Reason.INSUFFICIENT_MEMORY, node, uuid, demand.mib, mib)
        return None


def _nearness(refusal: Refusal) -> float:
    return refusal.best / refusal.wanted if refusal.wanted else -1.0


# -- what would fit --------------------------------------------------------------------------------------------


def nearest(placer: Asked, request: PodRequest, rows: IntArray) -> PodRequest | None:
    """The largest smaller request that fits now: fewer GPUs, else less of each, else less CPU or memory."""

    snap, wants = placer.snapshot, placer.spec(request).key.requirements

    def spec(smaller: PodRequest) -> Spec:
        # Not kept: nobody asked for it.
        return Spec(replace(SpecKey.of(replace(smaller, gpu_class=None), {}), requirements=wants), snap)

    def fits(smaller: PodRequest) -> bool:
        labels = None if smaller.locality == Locality() else smaller.locality
        found = placer.fitter.find(spec(smaller), np.sort(rows), labels)
        return bool((snap.memory[found.rows] >= smaller.memory_mib).any())

    if not len(rows):
        return None
    for smaller in _fewer(request):
        if fits(smaller):
            return smaller
    low, high = 0, 1000 if request.wants_gpu else 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(_scaled(request, middle)) else (low, middle)
    if low:
        return _scaled(request, low)
    return _frugal(placer, request, spec(replace(request, cpu_milli=0)), rows)


def _fewer(request: PodRequest) -> Iterator[PodRequest]:
    shares = [container.share for container in request.containers if container.share is not None]
    most = max((share.count for share in shares), default=1)
    for count in range(most - 1, 0, -1):
        yield _with(request, lambda share, count=count: replace(share, count=min(count, share.count)))


def _scaled(request: PodRequest, thousandths: int) -> PodRequest:
    def scale(share: ShareRequest) -> ShareRequest:
        def part(value: int | None) -> int | None:
            return value if not value else max(1, value * thousandths // 1000)

        milli, mib, card = part(share.milli), part(share.mib), part(share.card_memory)
        return replace(
            share,
            milli=None if milli is None else Milli(milli),
            mib=None if mib is None else Mib(mib),
            card_memory=None if card is None else Milli(card),
            limit=None,
        )

    return _with(request, scale)


def _frugal(placer: Asked, request: PodRequest, spec: Spec, rows: IntArray) -> PodRequest | None:
    """The same GPUs with what CPU and memory are left on the node that has most of them."""
    snap = placer.snapshot
    labels = None if request.locality == Locality() else request.locality
    found = placer.fitter.find(spec, np.sort(rows), labels).rows
    if not len(found):
        return None
    cpu = np.minimum(snap.cpu[found], request.cpu_milli)
    memory = np.minimum(snap.memory[found], request.memory_mib)
    best = int(np.lexsort((memory, cpu))[-1])
    return replace(request, cpu_milli=max(0, int(cpu[best])), memory_mib=max(0, int(memory[best])))


def _with(request: PodRequest, change: "_Change") -> PodRequest:
    containers = tuple(
        container if container.share is None else replace(container, share=change(container.share))
        for container in request.containers
    )
    return replace(request, containers=containers)


class _Change(Protocol):
    def __call__(self, share: ShareRequest, /) -> ShareRequest: ...


def describe(smaller: PodRequest, asked: PodRequest) -> str:
    """A request as a person would ask for it, as far as it differs from what was asked."""
    parts = [
        _share(share)
        for container in smaller.containers
        if (share := container.share) is not None and smaller.containers != asked.containers
    ]
    if smaller.cpu_milli != asked.cpu_milli:
        parts.append(f"{smaller.cpu_milli}m CPU")
    if smaller.memory_mib != asked.memory_mib:
        parts.append(f"{show_mib(smaller.memory_mib)} of memory")
    return " + ".join(parts)


def _share(share: ShareRequest) -> str:
    many = "" if share.count == 1 else f"{share.count} x "
    size = [] if share.milli is None or (share.milli == 0) else [f"{show_milli(share.milli)} GPU"]
    if share.milli == WHOLE and share.count > 1:
        many, size = "", [f"{share.count} GPUs"]
    if share.mib is not None:
        size.append(show_mib(share.mib))
    if share.card_memory is not None:
        size.append(f"{show_milli(share.card_memory)} of the card's memory")
    return many + " with ".join(size)
