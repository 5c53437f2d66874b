"""What would make room for a pod that fits nowhere: who would be shrunk and who evicted, in one line."""

from collections.abc import Sequence

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.preemption import (
    Disruption,
    PreemptionRule,
    choose_disruption,
    choose_for_group,
    shrinkable_on,
)
from milligpu.cluster.shrink import at_floor, largest_share
from milligpu.cluster.state import ClusterState
from milligpu.model.grant import NoFit
from milligpu.model.reasons import Reason
from milligpu.model.units import show_milli
from milligpu.placement.trial import Trial


def explain_room(state: ClusterState, spec: SchedulingSpec, rule: PreemptionRule) -> str:
    """Say who yields to the pod; empty if nobody does, or if its preemption policy is Never."""
    if not spec.preempts:
        return ""
    found = choose_disruption(state, spec, state.nodes.admitted(spec.constraints), rule)
    if found is None:
        return ""
    parts = [_shrinks(state, uid, found) for uid in found.shrunk]
    parts += [f"evicts pod {state.pods[uid].spec.pod}" for uid in found.victims]
    only = _short_of_memory(state, spec, found, rule)
    return f"makes room on {found.node}: {', '.join(parts)}{f' ({only})' if only else ''}"


def explain_group_room(state: ClusterState, specs: Sequence[SchedulingSpec], rule: PreemptionRule) -> str:
    """Say who would be evicted for pods that start together; empty if that helps not all of them."""
    if not all(each.preempts for each in specs):
        return ""
    found = choose_for_group(state, specs, state.nodes.admitted(specs[0].constraints), rule)
    if found is None or not found.victims:
        return ""
    victims = ", ".join(f"pod {state.pods[uid].spec.pod}" for uid in found.victims)
    return f"makes room for its group: evicts {victims}"


def _shrinks(state: ClusterState, uid: str, found: Disruption) -> str:
    entry = state.pods[uid]
    assert entry.grant is not None
    before, after = largest_share(entry.grant), largest_share(found.shrunk[uid])
    return f"shrinks pod {entry.spec.pod} from {show_milli(before)} to {show_milli(after)} GPU"


def _short_of_memory(state: ClusterState, spec: SchedulingSpec, found: Disruption, rule: PreemptionRule) -> str:
    """Say that only evicting helps, where shrinking would give enough compute."""
    if not found.victims or spec.request is None:
        return ""
    least = {each.spec.pod.uid: at_floor(each) for each in shrinkable_on(state, found.node, rule)}
    if not least:
        return ""
    with Trial(state.placer.snapshot) as trial:
        for uid, grant in least.items():
            trial.put(uid, state.shares.holding(state.pods[uid], grant))
        answer = state.placer.decide(spec.request, [found.node])
    short = isinstance(answer, NoFit) and any(each.reason is Reason.INSUFFICIENT_MEMORY for each in answer.refusals)
    return "only evicting helps, because memory is short, and a shrunk pod keeps its memory" if short else ""
