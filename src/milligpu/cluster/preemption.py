"""Preemption: which pods must be shrunk or leave a node so that another fits.

kube-scheduler chooses victims by a node's totals, which is wrong for GPUs: two GPUs with 400 milli free each have
no room for 500. It asks before it evicts, and the answer comes from the cluster state: pods without which there is
room on one GPU, or none. What the victims held is kept for the pod (`kept_shares`). kube-scheduler does not ask
where the totals seem to have room, and it cannot shrink pods; then the leader chooses, by the same rule.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.shrink import at_floor, is_shrinkable, largest_share, shrunk_grant
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadRequest
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.model.units import Milli
from milligpu.placement.snapshot import Holding
from milligpu.placement.trial import Trial

MayLeave = Callable[[PodEntry], bool]
"""Whether a bound pod may be evicted, or shrunk."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """What makes room for a pod on a node: pods that are shrunk, and pods that leave."""

    node: str
    victims: tuple[str, ...]
    """The uids of the pods that leave."""
    shrunk: Mapping[str, Grant] = field(default_factory=dict[str, Grant])
    """The next grants of the pods that are shrunk, by uid."""


@dataclass(frozen=True, slots=True)
class PreemptionRule:
    """Who may be disturbed for a pod."""

    may_leave: MayLeave
    may_shrink: MayLeave = lambda _: False
    allows: Callable[[Disruption], bool] = lambda _: True
    """Whether a choice is within the bounds that hold for several pods together, such as a queue's guarantee."""


def lower_priority(spec: SchedulingSpec) -> PreemptionRule:
    """Pods of a lower priority than this pod may be shrunk and evicted."""

    def is_lower(entry: PodEntry) -> bool:
        return entry.spec.priority < spec.priority

    return PreemptionRule(is_lower, is_lower)


def alone_of_lower_priority(spec: SchedulingSpec) -> PreemptionRule:
    """Pods that kube-scheduler may evict itself: it would leave the others of a group running."""
    lower = lower_priority(spec).may_leave
    return PreemptionRule(lambda entry: entry.spec.group is None and lower(entry))


def choose_for_kube_scheduler(state: ClusterState, spec: SchedulingSpec, nodes: Iterable[str]) -> Disruption | None:
    """Return which pods kube-scheduler may evict; None also if shrinking pods helps, which the leader then does.

    None, too, if pods that are leaving anyway make room on a node that kube-scheduler did not offer.
    kube-scheduler may ask again before the victims are gone: the answer stays the same, so no others are evicted.
    """
    offered, entry = list(nodes), state.entry(spec.pod.uid)
    if entry is not None and (entry.stage is not PodStage.WAITING or state.reservations.is_unused(entry)):
        return None
    under_way = state.reservations.preemption_of(spec.pod.uid)
    if spec.group is not None or (under_way is not None and under_way.shrinking):
        return None
    if under_way is not None and under_way.victims and under_way.node in offered:
        return Disruption(under_way.node, tuple(sorted(under_way.victims)))
    found = choose_disruption(state, spec, offered, alone_of_lower_priority(spec))
    rule = lower_priority(spec)
    yielding = {each.node for each in state.pods.resizing.values() if is_shrinkable(each) and rule.may_shrink(each)}
    yielding |= {each.node for each in state.pods.leaving.values()}
    if found is None or not yielding:
        return found
    everywhere = {*offered, *(yielding & set(state.nodes.admitted(spec.constraints)))}
    better = choose_disruption(state, spec, sorted(everywhere), rule)
    return None if better is not None and (better.shrunk or better.node not in offered) else found


def choose_disruption(
    state: ClusterState, spec: SchedulingSpec, nodes: Iterable[str], rule: PreemptionRule
) -> Disruption | None:
    """Return what makes room where the least is lost; None if nothing helps anywhere.

    No pod is disturbed for one that has a place already, as when kube-scheduler has not seen yet that its victims
    are gone, nor for one that was given a place long ago and was not bound.
    """
    entry = state.entry(spec.pod.uid)
    if entry is not None and (entry.stage is not PodStage.WAITING or state.reservations.is_unused(entry)):
        return None
    rough = [each for node in nodes if (each := _make_room(state, spec, node, rule)) is not None]
    for each in sorted(rough, key=lambda one: (*_loss(state, one), one.node)):
        found = _make_room(state, spec, each.node, rule, exactly=True) if each.shrunk else each
        if found is not None and rule.allows(found):
            return found
    return None


@dataclass(frozen=True, slots=True)
class GroupRoom:
    """What makes room for pods that start together."""

    victims: tuple[str, ...]
    places: Mapping[str, Grant]
    """Where each pod goes, by uid."""


def choose_for_group(
    state: ClusterState, specs: Iterable[SchedulingSpec], nodes: Sequence[str], rule: PreemptionRule
) -> GroupRoom | None:
    """Return who leaves so that all of these pods fit next to each other; None if that helps not all of them.

    Nobody is shrunk for a group.
    """
    victims: list[str] = []
    places: dict[str, Grant] = {}
    alone = PreemptionRule(rule.may_leave)
    with Trial(state.placer.snapshot) as trial:
        for spec in specs:
            found = None if state.fits(spec) else choose_disruption(state, spec, nodes, alone)
            for uid in () if found is None else found.victims:
                trial.put(uid, None)
                victims.append(uid)
            place = state.reservations.find_among(spec, state.nodes.mask(spec.constraints))
            if place is None or spec.request is None:
                return None
            places[spec.pod.uid] = place
            trial.put(spec.pod.uid, state.placer.holding(spec.request, place))
    return GroupRoom(tuple(victims), places) if rule.allows(Disruption("", tuple(victims))) else None


def _loss(state: ClusterState, choice: Disruption) -> tuple[float, int, int, int]:
    """The highest priority among the victims, their number and age, and how many are shrunk.

    Pods that are leaving anyway do not count.
    """
    lost = [state.pods[uid] for uid in choice.victims if not state.pods[uid].leaving]
    oldest = min((each.number for each in lost), default=0)
    return max((each.spec.priority for each in lost), default=-inf), len(lost), -oldest, len(choice.shrunk)


def _make_room(
    state: ClusterState, spec: SchedulingSpec, node: str, rule: PreemptionRule, *, exactly: bool = False
) -> Disruption | None:
    """Return as few pods as possible that have to be shrunk or leave so that the pod fits; None if that is no help.

    Without `exactly`, a shrunk pod is at its floor, and not at the most that still leaves room.
    """
    snap, request = state.placer.snapshot, spec.request
    if request is None or node not in snap.nodes:
        return None
    row = snap.rows_of[node][0]
    if snap.cpu[row] < request.cpu_milli or snap.memory[row] < request.memory_mib:
        state.enter_plain(node)
    try:
        with Trial(snap) as trial:
            search = _Search(state, request, node, rule, trial)
            if not search.all_yield():
                return None
            search.give_back(exactly=exactly)
    except BadRequest:
        return None
    if not search.victims and not search.shrunk:
        return None
    return Disruption(node, tuple(search.victims), search.shrunk)


class _Search:
    """The search for room on one node.

    Pods that are being deleted anyway go first, then all that may be are shrunk, then all that may leave. Then
    each, the most important and oldest first, gets back what it had if the pod still fits.
    """

    def __init__(
        self, state: ClusterState, request: PodRequest, node: str, rule: PreemptionRule, trial: Trial
    ) -> None:
        self._state = state
        self._request = request
        self._node = node
        self._trial = trial
        held = state.placer.snapshot.holdings_on(node)
        free = [each for each in held if _may_leave(state, each, rule.may_leave)]
        free.sort(key=lambda each: _importance(state.pods[each.pod]))
        self._going = [each for each in free if state.pods[each.pod].leaving]
        self._others = [each for each in free if not state.pods[each.pod].leaving]
        self._least = {entry.spec.pod.uid: at_floor(entry) for entry in shrinkable_on(state, node, rule)}
        self.victims: list[str] = []
        self.shrunk: dict[str, Grant] = {}

    def _fits(self) -> bool:
        return self._state.placer.fits(self._request, [self._node])

    def _hold(self, uid: str, grant: Grant) -> None:
        self._trial.put(uid, self._state.shares.holding(self._state.pods[uid], grant))

    def all_yield(self) -> bool:
        """Let pods yield, those that lose least first, until there is room; False if there is none even then."""
        for each in self._going:
            self._trial.put(each.pod, None)
        self.victims = [each.pod for each in self._going]
        if self._fits():
            return True
        for uid, grant in self._least.items():
            self._hold(uid, grant)
        self.shrunk = dict(self._least)
        if self._fits():
            return True
        for each in self._others:
            self._trial.put(each.pod, None)
        self.victims += [each.pod for each in self._others]
        return self._fits()

    def give_back(self, *, exactly: bool) -> None:
        """Give back as much as possible of what pods had, while there is still room."""
        for each in self._others:
            if each.pod in self.victims:
                self._let_stay(each)
        for uid in self.victims:
            self.shrunk.pop(uid, None)
        by_importance = sorted(self.shrunk, key=lambda uid: _importance(self._state.pods[uid]))
        for uid in by_importance:
            self._restore(uid)
        for uid in by_importance if exactly else ():
            if uid in self.shrunk:
                self._grow(uid)
        for each in self._going:
            self._let_stay(each)

    def _let_stay(self, each: Holding) -> None:
        if each.pod in self.shrunk:
            self._hold(each.pod, self.shrunk[each.pod])
        else:
            self._trial.put(each.pod, each)
        if self._fits():
            self.victims.remove(each.pod)
        else:
            self._trial.put(each.pod, None)

    def _restore(self, uid: str) -> None:
        """Give a shrunk pod all that it had, if there is still room then."""
        self._hold(uid, self._held(uid))
        if self._fits():
            del self.shrunk[uid]
        else:
            self._hold(uid, self.shrunk[uid])

    def _grow(self, uid: str) -> None:
        """Give a shrunk pod as much as still leaves room."""
        held = self._held(uid)
        low, high = largest_share(self.shrunk[uid]), largest_share(held)
        while high - low > 1:
            middle = Milli((low + high) // 2)
            self._hold(uid, shrunk_grant(held, middle))
            low, high = (middle, high) if self._fits() else (low, middle)
        self.shrunk[uid] = shrunk_grant(held, low)
        self._hold(uid, self.shrunk[uid])

    def _held(self, uid: str) -> Grant:
        held = self._state.pods[uid].grant
        assert held is not None
        return held


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


def shrinkable_on(state: ClusterState, node: str, rule: PreemptionRule) -> Iterator[PodEntry]:
    """The pods of a node that may be shrunk."""
    for entry in state.pods.resizing.values():
        promised = state.reservations.leaves_for_another(entry.spec.pod.uid)
        if entry.node == node and is_shrinkable(entry) and rule.may_shrink(entry) and not promised:
            yield entry


def _importance(entry: PodEntry) -> tuple[int, int]:
    return -entry.spec.priority, entry.number


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
