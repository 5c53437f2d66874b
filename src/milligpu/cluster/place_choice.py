"""The choice of a place for one pod: by its class first, by a fallback of the class then, on nodes in use first."""

from milligpu.cluster.held_shares import HeldShares
from milligpu.cluster.node_table import NodeTable
from milligpu.cluster.observed import SchedulingSpec
from milligpu.model.errors import BadRequest
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray

# The lowest rank of a node in use: one of kube-scheduler's ten points, so that no empty node has as many.
_RANK_IN_USE = 0.1


class PlaceChoice:
    """Chooses places; it changes nothing."""

    def __init__(self, placer: Placer, nodes: NodeTable, shares: HeldShares) -> None:
        self._placer = placer
        self._nodes = nodes
        self._shares = shares

    def anywhere(self, spec: SchedulingSpec) -> Grant | None:
        """Choose the best place in the cluster that a pod's own conditions allow."""
        return self.among(spec, self._nodes.mask(spec.constraints))

    def among(self, spec: SchedulingSpec, rows: BoolArray | None, *, class_elsewhere: bool = False) -> Grant | None:
        """Place a pod by its class, or by a fallback if no GPU of the class is free.

        kube-scheduler offers only some nodes. With `class_elsewhere`, a free GPU of the class on a node that is not
        among `rows` goes before the fallback: the pod is refused here, and nominated there.
        """
        first, *fallbacks = self._placer.alternatives(asked_of(spec))
        grant = self._by_class(first, rows)
        if grant is not None or not fallbacks:
            return grant
        if class_elsewhere and self._placer.place_on(first, self._nodes.mask(spec.constraints)) is not None:
            return None
        placed = (self._by_class(asked, rows) for asked in fallbacks)
        return next((grant for grant in placed if grant is not None), None)

    def fitting(self, spec: SchedulingSpec, rows: BoolArray, *, class_elsewhere: bool) -> dict[str, float]:
        """Return all nodes on which `among` would place a pod, with a score: higher is tighter, nodes in use first.

        The scores are ranks from 0 to 1.
        """
        first, *fallbacks = self._placer.alternatives(asked_of(spec))
        found = self._ranked(first, rows)
        if found or not fallbacks:
            return found
        if class_elsewhere and self._placer.place_on(first, self._nodes.mask(spec.constraints)) is not None:
            return {}
        for asked in fallbacks:
            found = found or self._ranked(asked, rows)
        return found

    def _ranked(self, request: PodRequest, rows: BoolArray) -> dict[str, float]:
        found, scores = self._placer.fitting(request, rows)
        used = self._shares.in_use()[found] if request.strategy is None else [True] * len(found)
        order = sorted({float(score) for in_use, score in zip(used, scores, strict=True) if in_use})
        step = (1 - _RANK_IN_USE) / max(1, len(order) - 1)
        rank = {score: _RANK_IN_USE + step * at for at, score in enumerate(order)}
        names = self._placer.snapshot.node_names
        ranked: dict[str, float] = {}
        for row, in_use, score in zip(found, used, scores, strict=True):
            name = names[int(row)]
            ranked[name] = max(ranked.get(name, 0.0), rank[float(score)] if in_use else 0.0)
        return ranked

    def _by_class(self, request: PodRequest, rows: BoolArray | None) -> Grant | None:
        """Prefer nodes in use: a node that stays empty can take the largest job, or be switched off."""
        if request.strategy is None and request.wants_gpu:
            used = self._shares.in_use()
            grant = self._placer.place_on(request, used if rows is None else used & rows)
            if grant is not None:
                return grant
        return self._placer.place_on(request, rows)


def asked_of(spec: SchedulingSpec) -> PodRequest:
    """Return what a pod asks for. Raises `BadRequest` if that is invalid."""
    if spec.request is None:
        raise BadRequest("pod", str(spec.pod), f"a valid request; {spec.mistake}")
    return spec.request
