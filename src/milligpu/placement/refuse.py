"""Why nothing fits: for each GPU the first reason that holds, for each node what it lacks, and what would fit.

Reasons that never change come before those that pass, so that no pod waits for a GPU of the wrong model.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

import numpy as np

from milligpu.model.affinity import AffinityLabels
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.grant import NoFit
from milligpu.model.reasons import Reason, Refusal, reason_of_state
from milligpu.model.request import PodRequest
from milligpu.placement.fit import RequestSpec
from milligpu.placement.nearest import SpecSource, describe_difference, nearest_fit_in_steps
from milligpu.placement.snapshot import NOBODY, IntArray

# Refusals for every GPU of a large cluster would take longer than the decision. With more GPUs than this, each node
# is represented by its best GPU.
_GPUS_MAX = 4096


def explain(placer: SpecSource, request: PodRequest, among: Iterable[str] | None = None) -> NoFit:
    """Return all reasons, with numbers, and the nearest request that would fit."""
    steps = explain_in_steps(placer, request, among)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


# Some milliseconds of work.
_ROWS_PER_STEP = 32


def explain_in_steps(
    placer: SpecSource, request: PodRequest, among: Iterable[str] | None = None
) -> Generator[None, None, NoFit]:
    """Explain in small steps: a large cluster takes half a second, and other requests must not wait that long.

    Pods may start and end between steps, but nodes must stay the same.
    """
    snap = placer.snapshot
    nodes = list(snap.nodes) if among is None else [name for name in among if name in snap.nodes]
    rows = [row for name in nodes for row in snap.rows_of[name]]
    spec = placer.spec(request)
    every_gpu = sum(len(snap.uuids[row]) for row in rows) <= _GPUS_MAX
    check = _RowCheck(placer, request, spec, every_gpu=every_gpu)
    refusals: list[Refusal] = []
    for at in range(0, len(rows), _ROWS_PER_STEP):
        refusals += [refusal for row in rows[at : at + _ROWS_PER_STEP] for refusal in check.row(row)]
        yield
    near = yield from nearest_fit_in_steps(placer, request, np.array(rows, np.int64))
    return NoFit(tuple(refusals), len(nodes), "" if near is None else describe_difference(near, request))


class _RowCheck:
    """Gives the reasons of one request, row by row."""

    def __init__(self, placer: SpecSource, request: PodRequest, spec: RequestSpec, *, every_gpu: bool) -> None:
        self.snap = placer.snapshot
        self.fitter = placer.fitter
        self.request = request
        self.spec = spec
        self.every_gpu = every_gpu
        locality = request.locality
        self.exclusion = self.snap.label_number(locality.exclusion)
        self.apart = set(self.snap.cells_with(anti_affinity=locality.anti_affinity))
        self.together = set(self.snap.cells_with(affinity=locality.affinity))

    def row(self, row: int) -> Iterator[Refusal]:
        """Return why a row does not fit; nothing if it fits."""
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
        yield from bad if self.every_gpu else bad and [max(bad, key=_nearness)]
        count, good = int(spec.count[snap.kind[row]]), len(refusals) - len(bad)
        if 0 < good < count:
            yield Refusal(Reason.INSUFFICIENT_GPUS, node, "", count, good)
        elif good and not len(self._ways(row)):
            yield from self._node(row) or [self._group(node, count, good)]
        elif good:
            yield from self._node(row)

    def _ways(self, row: int) -> IntArray:
        # CPU is checked separately: only the GPUs count here.
        spec = RequestSpec(replace(self.spec.key, cpu_milli=0), self.snap)
        labels = None if self.request.locality == AffinityLabels() else self.request.locality
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
            return Refusal(need.reason, node, uuid, need.wanted, need.best, need.unit, need.message)
        wants = self.spec.key.requirements
        if (wants.uuids is not None and uuid not in wants.uuids) or uuid in wants.uuids_not:
            return Refusal(Reason.UUID_MISMATCH, node, uuid)
        if not snap.policy[cell] & self.spec.policies:
            message = f"its share policy is {snap.gpu(node, uuid).policy}"
            return Refusal(Reason.POLICY_MISMATCH, node, uuid, message=message)
        state = snap.state(node, uuid)
        if state is not GpuState.OK:
            return refuse_state(state, node, snap.gpu(node, uuid))
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
        # The smallest demand: a GPU without room even for that is of no use to the request.
        demand = self.spec.needs[int(snap.kind[cell[0]])].demands[-1]
        milli, mib = max(0, int(snap.milli[cell])), max(0, int(snap.mib[cell]))
        if milli < demand.milli or (demand.whole and snap.tenants[cell]):
            best = min(milli, demand.milli - 1) if demand.whole else milli
            return Refusal(Reason.INSUFFICIENT_CORE, node, uuid, demand.milli, best)
        if mib < demand.mib:
            return Refusal(Reason.INSUFFICIENT_MEMORY, node, uuid, demand.mib, mib)
        return None


def refuse_state(state: GpuState, node: str, gpu: Gpu) -> Refusal:
    """Why a GPU that is not ok gets no new shares: what its health checks found, or the admin's reason."""
    return Refusal(reason_of_state(state), node, gpu.uuid, message=gpu.message)


def _nearness(refusal: Refusal) -> float:
    return refusal.best / refusal.wanted if refusal.wanted else -1.0
