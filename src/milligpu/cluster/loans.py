"""Which bound pods would have to shrink so that a waiting pod fits: borrowers, or lenders of an update. No I/O."""

from collections.abc import Iterable, Mapping

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import short_uuid
from milligpu.model.grant import Grant
from milligpu.model.units import show_mib
from milligpu.placement.snapshot import Holding

# A pod that names a place which many nodes have finds it on one of the first.
_NODES_MAX = 64


def lenders_for(state: ClusterState, spec: SchedulingSpec, smaller: Mapping[str, Grant | None]) -> list[str]:
    """Return few pods that have to take these smaller grants so that a waiting pod fits; none if it cannot.

    A grant of None is a pod that would be gone.
    """
    request = spec.request
    if request is None or not smaller:
        return []
    by_node: dict[str, list[str]] = {}
    for uid in smaller:
        entry = state.entry(uid)
        if entry is not None and uid in state.placer.snapshot.holdings:
            by_node.setdefault(entry.node, []).append(uid)
    admitted = set(state.nodes.admitted(spec.constraints))
    nodes = [name for name in by_node if name in admitted]
    found: list[list[str]] = [
        lenders
        for node in nodes[:_NODES_MAX]
        if (lenders := _on_node(state, spec, node, {uid: smaller[uid] for uid in by_node[node]}))
    ]
    return min(found, key=len, default=list[str]())


def _on_node(
    state: ClusterState, spec: SchedulingSpec, node: str, smaller: Mapping[str, Grant | None]
) -> list[str]:
    """Try with all smaller grants, then give each pod its own back if the waiting one still fits."""
    snap = state.placer.snapshot
    present = {uid: snap.holdings[uid] for uid in smaller}
    reduced = {uid: _smaller(state, uid, grant) for uid, grant in smaller.items()}

    def hold(uid: str, holding: Holding | None) -> None:
        if uid in snap.holdings:
            snap.release(uid)
        if holding is not None:
            snap.take(holding, force=True)

    assert spec.request is not None
    lenders = list(smaller)
    try:
        for uid in smaller:
            hold(uid, reduced[uid])
        if not state.placer.fits(spec.request, [node]):
            return []
        for uid in smaller:
            hold(uid, present[uid])
            if state.placer.fits(spec.request, [node]):
                lenders.remove(uid)
            else:
                hold(uid, reduced[uid])
    except BadRequest:
        return []
    else:
        return lenders
    finally:
        for uid in smaller:
            hold(uid, present[uid])


def describe_memory(state: ClusterState, spec: SchedulingSpec, uids: Iterable[str]) -> str:
    """Say what memory the GPUs of these pods have free next to them, and what a new pod asks for."""
    snap, request = state.placer.snapshot, spec.request
    held = {(state.pods[uid].node, gpu) for uid in uids for gpu, _ in snap.holdings[uid].demands}
    if request is None or not held:
        return ""
    node, uuid = max(sorted(held), key=lambda each: int(snap.mib[snap.cell_of[each]]))
    gpu, free = snap.gpu(node, uuid), int(snap.mib[snap.cell_of[node, uuid]])
    wanted = sum(
        each.share.resolve(gpu, request.policy).mib for each in request.containers if each.share is not None
    )
    where = f"{node}/{short_uuid(uuid)}"
    room = f"{where} has {show_mib(free)} of {show_mib(gpu.mib)} free next to the present pod"
    return f"{room}, and {show_mib(wanted)} are needed"


def _smaller(state: ClusterState, uid: str, grant: Grant | None) -> Holding | None:
    if grant is None:
        return None
    return state.shares.holding(state.pods[uid], grant)
