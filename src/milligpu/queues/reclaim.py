"""What was lent comes back: which pods yield when a queue needs its guarantee, or a pod has a higher priority.

A pod of a queue may be shrunk or evicted for a pod that is within its own guarantee, if its queue has more than its
guarantee and has no less than that afterwards. Of each queue the youngest pods leave first.
"""

from collections import Counter
from dataclasses import dataclass, field

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.preemption import Disruption, PreemptionRule
from milligpu.cluster.state import ClusterState
from milligpu.model.gpu_queue import GpuQueue
from milligpu.model.grant import Grant
from milligpu.model.group import GroupKey
from milligpu.model.reasons import QueueReason
from milligpu.queues.cluster_lines import ClusterLines, charge_of, is_in_line, queued_pod
from milligpu.queues.group_turn import turn_of
from milligpu.queues.order import QueuedPod, WaitingLines


@dataclass(frozen=True, slots=True)
class Lent:
    """What queues have beyond their guarantees."""

    over: Counter[str] = field(default_factory=Counter[str])
    """Milli-GPU by queue."""
    pods: frozenset[str] = frozenset()
    """The bound pods without which their queue still has its guarantee: of each queue the youngest."""


def reclaims(state: ClusterState, view: ClusterLines) -> list[tuple[list[PodEntry], PreemptionRule]]:
    """The first pod of each queue that has no room, or all of its group that have to start, and who may yield."""
    lent = lent_by_others(state, view.lines)
    found: list[tuple[list[PodEntry], PreemptionRule]] = []
    groups: set[GroupKey] = set()
    for uid, reason in view.admission.reasons.items():
        entry = state.entry(uid)
        pod = None if entry is None else queued_pod(state, entry)
        if entry is None or pod is None or reason is not QueueReason.NO_ROOM or not is_in_line(entry):
            continue
        if pod.group is not None and pod.group in groups:
            continue
        groups |= set() if pod.group is None else {pod.group}
        turn = turn_of(view.lines, pod)
        entries = [state.pods[each.name] for each in turn.pods[: turn.needed]]
        within = _is_within(view.lines, turn.together)
        found.append((entries, _rule(state, entry, lent if within else Lent())))
    return found


def _rule(state: ClusterState, asking: PodEntry, lent: Lent) -> PreemptionRule:
    """Pods of lower priority may be shrunk and leave, and what was lent to other queues."""

    def is_lower(entry: PodEntry) -> bool:
        return entry.spec.priority < asking.spec.priority

    def may_leave(entry: PodEntry) -> bool:
        return is_lower(entry) or (entry.spec.pod.uid in lent.pods and entry.spec.queue != asking.spec.queue)

    def may_shrink(entry: PodEntry) -> bool:
        return is_lower(entry) or (lent.over[entry.spec.queue] > 0 and entry.spec.queue != asking.spec.queue)

    def leaves_guarantees(choice: Disruption) -> bool:
        taken: Counter[str] = Counter()
        for entry in map(state.pods.__getitem__, (*choice.victims, *choice.shrunk)):
            if not is_lower(entry) and not entry.leaving:
                after = choice.shrunk.get(entry.spec.pod.uid)
                kept = 0 if after is None else _held(state, entry, after)
                taken[entry.spec.queue] += _held(state, entry, entry.grant) - kept
        return all(milli <= lent.over[queue] for queue, milli in taken.items())

    return PreemptionRule(may_leave, may_shrink, leaves_guarantees)


def _is_within(lines: WaitingLines, pod: QueuedPod) -> bool:
    return all(
        _fits(lines.state[each.name].milli + pod.milli, each.guarantee.milli)
        and _fits(lines.state[each.name].mib + pod.mib, each.guarantee.mib)
        for each in lines.queues.line_of(pod.queue)
    )


def _fits(amount: int, quota: int | None) -> bool:
    return quota is None or amount <= quota


def lent_by_others(state: ClusterState, lines: WaitingLines) -> Lent:
    """What each queue has beyond its guarantee, counted by what its pods hold now: a shrunk pod holds less."""
    by_queue: dict[str, list[PodEntry]] = {}
    for entry in state.pods.in_queues.values():
        if entry.stage is PodStage.BOUND and entry.spec.queue in lines.queues and entry.spec.request is not None:
            by_queue.setdefault(entry.spec.queue, []).append(entry)
    over: Counter[str] = Counter()
    found: set[str] = set()
    for name, entries in by_queue.items():
        over[name] = lines.state[name].milli - _shrunk_by(state, entries) - _guarantee(lines.queues[name])
        rest = over[name]
        for entry in sorted(entries, key=lambda each: -each.number):
            milli = _held(state, entry, entry.grant)
            if 0 < milli <= rest:
                rest -= milli
                found.add(entry.spec.pod.uid)
    return Lent(over, frozenset(found))


def _shrunk_by(state: ClusterState, entries: list[PodEntry]) -> int:
    """How much less these pods hold than they count in their queue."""
    return sum(_charge(state, each) - _held(state, each, each.grant) for each in entries)


def _held(state: ClusterState, entry: PodEntry, grant: Grant | None) -> int:
    """What a bound pod counts with this grant: as its request, unless it may be shrunk."""
    node = state.placer.snapshot.nodes.get(entry.node)
    if entry.spec.floor is None or node is None:
        return _charge(state, entry)
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    return sum(demand.part_of(gpus[uuid]) for uuid, demand in state.shares.holding(entry, grant).demands)


def _charge(state: ClusterState, entry: PodEntry) -> int:
    return 0 if entry.spec.request is None else charge_of(state.placer, entry.spec.request)[0]


def _guarantee(queue: GpuQueue) -> int:
    return queue.guarantee.milli or 0
