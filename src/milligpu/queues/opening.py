"""Where a pod that does not fit now will fit, and when at the latest, by the time limits of those who run.

Nobody who starts later may take that room away. What is free now and needed then becomes a holding of its own, so
that placement goes around it. What is free beyond it stays usable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from milligpu.model.footprint import GpuDemand
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray, Holding
from milligpu.queues.order import FOREVER

# Nodes that are looked at, those with the most free GPU first. More nodes cost more and find little.
NODES_MAX = 64


@dataclass(frozen=True, slots=True)
class Opening:
    """The room that a waiting pod will have."""

    grant: Grant
    at: float
    """When at the latest; `FOREVER` where that depends on a pod without a time limit."""


def find_opening(
    placer: Placer, request: PodRequest, ends: Mapping[str, float], allowed: BoolArray | None = None
) -> Opening | None:
    """Find the earliest room; None if no node is large enough. `ends` has the latest end of every running pod.

    `allowed` are the rows of the nodes on which the pod may be; None for all.
    """
    best: Opening | None = None
    for node in _nodes(placer, request, allowed):
        if best is not None and not _ends_before(placer, node, ends, best.at):
            continue
        found = _opening_on(placer, request, node, ends, best.at if best else FOREVER)
        if found is not None and (best is None or found.at < best.at):
            best = found
    return best


def _ends_before(placer: Placer, node: str, ends: Mapping[str, float], at: float) -> bool:
    """Whether any pod of the node ends before this time: otherwise it cannot have room before."""
    return any(each.pod in ends and ends[each.pod] < at for each in placer.snapshot.holdings_on(node))


def _nodes(placer: Placer, request: PodRequest, allowed: BoolArray | None) -> list[str]:
    """The nodes whose GPUs are of a kind that fits, those with the most free first."""
    snap, spec = placer.snapshot, placer.spec(request)
    fits = spec.allowed[snap.kind] & (snap.cpu >= 0)
    rows = np.flatnonzero(fits if allowed is None else fits & allowed)
    free = np.maximum(snap.offered[rows], 0)
    # What several GPUs need is free on as many; the fullest of the others do not matter.
    count = max(1, min(spec.most, free.shape[1]))
    most = np.sort(free, axis=1)[:, -count:].sum(axis=1)
    order = rows[np.argsort(-most, kind="stable")]
    return list(dict.fromkeys(snap.node_names[int(row)] for row in order[:NODES_MAX]))


def _opening_on(
    placer: Placer, request: PodRequest, node: str, ends: Mapping[str, float], before: float
) -> Opening | None:
    """Let the pods of a node end one after the other until the request fits."""
    snap = placer.snapshot
    gone: list[Holding] = []
    try:
        # Room that is kept for others has no end.
        running = [each for each in snap.holdings_on(node) if each.pod in ends]
        for holding in sorted(running, key=lambda each: (ends[each.pod], each.pod)):
            at = ends[holding.pod]
            if at > before:
                return None
            snap.release(holding.pod)
            gone.append(holding)
            grant = placer.place(request, [node])
            if grant is not None:
                return Opening(grant, at)
        return None
    finally:
        for holding in gone:
            snap.take(holding, force=True)


def kept_room(
    placer: Placer, request: PodRequest, opening: Opening, ends: Mapping[str, float], name: str
) -> Holding:
    """What of the room is free now and must stay free, because it is not free in plenty when the pod starts."""
    snap = placer.snapshot
    wanted = placer.holding(request, opening.grant)
    leaving = [each for each in snap.holdings_on(wanted.node) if each.pod in ends and ends[each.pod] <= opening.at]
    demands: list[tuple[str, GpuDemand]] = []
    for uuid, demand in wanted.demands:
        row, column = snap.cell_of[wanted.node, uuid]
        free = GpuDemand(Milli(int(snap.milli[row, column])), Mib(int(snap.mib[row, column])), whole=True)
        more = [held for each in leaving for gpu, held in each.demands if gpu == uuid]
        kept = free if demand.whole else _kept_of_gpu(free, more, demand)
        if kept.milli or kept.mib:
            demands.append((uuid, kept))
    row = snap.rows_of[wanted.node][0]
    return Holding(
        name,
        wanted.node,
        tuple(demands),
        _kept(int(snap.cpu[row]), sum(each.cpu_milli for each in leaving), wanted.cpu_milli),
        _kept(int(snap.memory[row]), sum(each.memory_mib for each in leaving), wanted.memory_mib),
    )


def _kept_of_gpu(free: GpuDemand, more: Sequence[GpuDemand], wanted: GpuDemand) -> GpuDemand:
    milli = _kept(free.milli, sum(each.milli for each in more), wanted.milli)
    return GpuDemand(Milli(milli), Mib(_kept(free.mib, sum(each.mib for each in more), wanted.mib)))


def _kept(free: int, more: int, wanted: int) -> int:
    """How much of what is free now cannot be given away, if `more` comes free before `wanted` is needed."""
    return max(0, min(free, wanted - more))
