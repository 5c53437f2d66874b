"""Preemption: which pods must leave a node so that another fits.

kube-scheduler chooses victims by a node's totals, which is wrong for GPUs: two GPUs with 400 milli free each have
no room for 500. It asks before it evicts, and the answer comes from the cluster state: pods without which there is
room on one GPU, or none. What the victims held is kept for the pod (`kept_shares`).
"""

from collections.abc import Iterable
from math import inf

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.placement.snapshot import Holding


def choose_node(state: ClusterState, spec: SchedulingSpec, nodes: Iterable[str]) -> tuple[str, list[str]] | None:
    """Return the node where the least is lost, and the uids of its victims; None if evicting helps nowhere.

    kube-scheduler may ask again before the victims are gone: the answer stays the same, so no others are evicted.
    For a pod that was given a place long ago and was not bound, no pod is evicted.
    """
    offered, entry = list(nodes), state.entry(spec.pod.uid)
    if entry is not None and state.reservations.is_unused(entry):
        return None
    under_way = state.reservations.preemption_of(spec.pod.uid)
    if under_way is not None and under_way.victims and under_way.node in offered:
        return under_way.node, sorted(under_way.victims)
    found = [(node, victims) for node in offered if (victims := choose_victims(state, spec, node))]
    return min(found, key=lambda each: (*_loss(state, each[1]), each[0]), default=None)


def _loss(state: ClusterState, victims: list[str]) -> tuple[float, int]:
    """The highest priority among the victims, and their number; pods that leave anyway do not count."""
    lost = [state.pods[uid].spec.priority for uid in victims if not state.pods[uid].leaving]
    return max(lost, default=-inf), len(lost)


def choose_victims(state: ClusterState, spec: SchedulingSpec, node: str) -> list[str]:
    """Return as few pods as possible without which the pod fits on the node; none if it cannot.

    They are of lower priority, or are being deleted anyway. All of them are left out first. Then each, the most
    important first, is counted again if the pod still fits.
    """
    snap, request = state.placer.snapshot, spec.request
    if request is None or node not in snap.nodes:
        return []
    free = [each for each in snap.holdings_on(node) if _may_leave(state, each, spec.priority)]
    free.sort(key=lambda each: (state.pods[each.pod].leaving, -state.pods[each.pod].spec.priority))
    for holding in free:
        snap.release(holding.pod)
    victims = list(free)
    try:
        if not state.placer.fits(request, [node]):
            return []
        for holding in free:
            snap.take(holding, force=True)
            if state.placer.fits(request, [node]):
                victims.remove(holding)
            else:
                snap.release(holding.pod)
    except BadRequest:
        return []
    finally:
        for holding in free:
            if holding.pod not in snap.holdings:
                snap.take(holding, force=True)
    return [holding.pod for holding in victims]


def _may_leave(state: ClusterState, holding: Holding, priority: int) -> bool:
    entry = state.entry(holding.pod)
    return (
        entry is not None
        and entry.stage is PodStage.BOUND
        and (entry.leaving or entry.spec.priority < priority)
        and not state.reservations.leaves_for_another(holding.pod)
    )
