"""Preemption: which pods must leave a node so that another fits.

kube-scheduler chooses victims by a node's totals, which is wrong for GPUs: two GPUs with 400 milli free each have
no room for 500. It asks before it evicts, and the answer comes from the cluster state: pods without which there is
room on one GPU, or none. What the victims held is kept for the pod (`kept_shares`). kube-scheduler does not ask
where the totals seem to have room; then the leader chooses victims itself, by the same rule.
"""

from collections.abc import Callable, Iterable
from math import inf

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.placement.snapshot import Holding

MayLeave = Callable[[PodEntry], bool]
"""Whether a bound pod may be evicted."""


def lower_priority(spec: SchedulingSpec) -> MayLeave:
    """Pods of a lower priority than this pod may be evicted."""

    def may_leave(entry: PodEntry) -> bool:
        return entry.spec.priority < spec.priority

    return may_leave


def _alone_of_lower_priority(spec: SchedulingSpec) -> MayLeave:
    """Pods that kube-scheduler may evict itself: it would leave the others of a group running."""
    lower = lower_priority(spec)
    return lambda entry: entry.spec.group is None and lower(entry)


def choose_node(
    state: ClusterState, spec: SchedulingSpec, nodes: Iterable[str], may_leave: MayLeave | None = None
) -> tuple[str, list[str]] | None:
    """Return the node where the least is lost, and the uids of its victims; None if evicting helps nowhere.

    kube-scheduler may ask again before the victims are gone: the answer stays the same, so no others are evicted.
    No pod is evicted for a pod of a group, for one that has a place already, as when kube-scheduler has not seen
    yet that its victims are gone, nor for one that was given a place long ago and was not bound.
    Without `may_leave`, pods of lower priority that are in no group may be evicted.
    """
    offered, entry = list(nodes), state.entry(spec.pod.uid)
    if spec.group is not None:
        return None
    if entry is not None and (entry.stage is not PodStage.WAITING or state.reservations.is_unused(entry)):
        return None
    under_way = state.reservations.preemption_of(spec.pod.uid)
    if under_way is not None and under_way.victims and under_way.node in offered:
        return under_way.node, sorted(under_way.victims)
    found = [(node, victims) for node in offered if (victims := choose_victims(state, spec, node, may_leave))]
    return min(found, key=lambda each: (*_loss(state, each[1]), each[0]), default=None)


def _loss(state: ClusterState, victims: list[str]) -> tuple[float, int, int]:
    """The highest priority among the victims, their number, and how old they are; leaving pods do not count."""
    lost = [state.pods[uid] for uid in victims if not state.pods[uid].leaving]
    oldest = min((each.number for each in lost), default=0)
    return max((each.spec.priority for each in lost), default=-inf), len(lost), -oldest


def choose_victims(
    state: ClusterState, spec: SchedulingSpec, node: str, may_leave: MayLeave | None = None
) -> list[str]:
    """Return as few pods as possible without which the pod fits on the node; none if it cannot.

    They are of lower priority, or are being deleted anyway. All of them are left out first. Then each, the most
    important and oldest first, is counted again if the pod still fits.
    """
    snap, request = state.placer.snapshot, spec.request
    if request is None or node not in snap.nodes:
        return []
    row = snap.rows_of[node][0]
    if snap.cpu[row] < request.cpu_milli or snap.memory[row] < request.memory_mib:
        state.enter_plain(node)
    allowed = may_leave or _alone_of_lower_priority(spec)
    free = [each for each in snap.holdings_on(node) if _may_leave(state, each, allowed)]
    free.sort(key=lambda each: _importance(state.pods[each.pod]))
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


def evicted_with(state: ClusterState, victims: Iterable[str]) -> list[PodEntry]:
    """The bound pods of groups that have too few pods left without these: they are of no use, and leave, too."""
    leaving = set(victims)
    keys = {state.pods[uid].spec.group_key for uid in leaving} - {None}
    found: list[PodEntry] = []
    for key in sorted(key for key in keys if key is not None):
        bound = [
            each
            for each in state.pods.in_queues.values()
            if each.spec.group_key == key and each.stage is PodStage.BOUND and each.spec.pod.uid not in leaving
        ]
        group = None if not bound else bound[0].spec.group
        if group is not None and len(bound) < group.min_count:
            found += [each for each in bound if not each.leaving]
    return found


def _importance(entry: PodEntry) -> tuple[bool, int, int]:
    return entry.leaving, -entry.spec.priority, entry.number


def _may_leave(state: ClusterState, holding: Holding, allowed: MayLeave) -> bool:
    entry = state.entry(holding.pod)

    def may_go(each: PodEntry) -> bool:
        return allowed(each) and not state.is_protected(each)

    return (
        entry is not None
        and entry.stage is PodStage.BOUND
        and (entry.leaving or all(map(may_go, (entry, *evicted_with(state, [holding.pod])))))
        and not state.reservations.leaves_for_another(holding.pod)
    )
