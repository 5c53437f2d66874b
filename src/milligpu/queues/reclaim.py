"""What was lent comes back: which pods leave when a queue needs its guarantee, or a pod has a higher priority.

A pod of a queue may be evicted for a pod that is within its own guarantee, if its queue has more than its guarantee
and has no less than that afterwards. Of each queue the youngest pods leave first.
"""

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.preemption import MayLeave
from milligpu.cluster.state import ClusterState
from milligpu.model.gpu_queue import GpuQueue
from milligpu.model.reasons import QueueReason
from milligpu.queues.cluster_lines import ClusterLines, charge_of, is_in_line
from milligpu.queues.order import WaitingLines


def reclaims(state: ClusterState, view: ClusterLines) -> list[tuple[PodEntry, MayLeave]]:
    """The first pod of each queue that has no room, and which pods may be evicted for it."""
    lent = borrowed_pods(state, view.lines)
    found: list[tuple[PodEntry, MayLeave]] = []
    for uid, reason in view.admission.reasons.items():
        entry = state.entry(uid)
        if entry is None or reason is not QueueReason.NO_ROOM or not is_in_line(entry):
            continue
        if entry.spec.group is not None:
            continue  # pods would be evicted for some of the group, and in vain if the others have no room
        found.append((entry, _rule(entry, lent if _is_within(state, view.lines, entry) else frozenset())))
    return found


def _rule(asking: PodEntry, lent: frozenset[str]) -> MayLeave:
    """Pods of lower priority may leave, and what was lent to other queues."""

    def may_leave(entry: PodEntry) -> bool:
        lower = entry.spec.priority < asking.spec.priority
        return lower or (entry.spec.pod.uid in lent and entry.spec.queue != asking.spec.queue)

    return may_leave


def _is_within(state: ClusterState, lines: WaitingLines, entry: PodEntry) -> bool:
    request = entry.spec.request
    if request is None:
        return False
    milli, mib = charge_of(state.placer, request)
    return all(
        _fits(lines.state[each.name].milli + milli, each.guarantee.milli)
        and _fits(lines.state[each.name].mib + mib, each.guarantee.mib)
        for each in lines.queues.line_of(entry.spec.queue)
    )


def _fits(amount: int, quota: int | None) -> bool:
    return quota is None or amount <= quota


def borrowed_pods(state: ClusterState, lines: WaitingLines) -> frozenset[str]:
    """The bound pods without which their queue still has its guarantee: of each queue the youngest."""
    by_queue: dict[str, list[PodEntry]] = {}
    for entry in state.pods.in_queues.values():
        if entry.stage is PodStage.BOUND and entry.spec.queue in lines.queues and entry.spec.request is not None:
            by_queue.setdefault(entry.spec.queue, []).append(entry)
    found: set[str] = set()
    for name, entries in by_queue.items():
        over = lines.state[name].milli - (_guarantee(lines.queues[name]))
        for entry in sorted(entries, key=lambda each: -each.number):
            assert entry.spec.request is not None
            milli, _ = charge_of(state.placer, entry.spec.request)
            if 0 < milli <= over:
                over -= milli
                found.add(entry.spec.pod.uid)
    return frozenset(found)


def _guarantee(queue: GpuQueue) -> int:
    return queue.guarantee.milli or 0
