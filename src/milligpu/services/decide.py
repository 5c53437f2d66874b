"""The stages: first each pod's guarantee follows the load, then the number of pods; down in the same order.

Growth follows short averages, and reduction the most of a long window, with a gap of one third between the two.
So a load that varies by a fifth around its mean never makes a service shrink and grow again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from milligpu.model.gpu_service import ReplicaRange
from milligpu.model.reasons import ServiceReason
from milligpu.model.units import WHOLE, show_milli
from milligpu.services.window import Needs

STEP = 10
"""Shares are multiples of this many milli, so that noise does not write a grant a second."""
GAP = 1.5
"""A service shrinks only to what would hold the most of its window this many times: 1.2 / 0.8."""


def next_share(present: int, needs: Needs, pods: int, low: int, high: int) -> int:
    """Return the milli-GPU that each of `pods` pods should be guaranteed."""
    held = min(max(present, low), high)
    if pods == 0 or needs.now is None:
        return held
    grown = _rounded(needs.now / pods)
    if grown > held:
        return min(grown, high)
    if needs.most_shrink is not None and _rounded(needs.most_shrink / pods * GAP) < held:
        return min(max(_rounded(needs.most_shrink / pods), low), held)
    return held


def _rounded(milli: float) -> int:
    return min(ceil(milli / STEP) * STEP, WHOLE * STEP)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What the number of pods is decided from."""

    wanted: int
    """The target's `spec.replicas`."""
    starting: bool
    """Whether pods wait or start, or an update is under way."""
    capacities: Sequence[int]
    """The most milli-GPU that each ready pod can be guaranteed, with what its GPUs have free."""
    share: int
    """What each pod should be guaranteed."""
    high: int
    """`share.max`."""


@dataclass(frozen=True, slots=True)
class ReplicaDecision:
    """How many pods there should be, and what the condition `Scaled` says."""

    replicas: int
    reason: ServiceReason
    message: str = ""


def next_replicas(state: ReplicaState, needs: Needs, replicas: ReplicaRange | None) -> ReplicaDecision:
    """Return how many pods there should be."""
    capacity = sum(state.capacities)
    short = 0.0 if needs.steady is None else needs.steady - capacity
    blocked = [each for each in state.capacities if each < state.share]
    if replicas is None:
        return _without_replicas(state, short, blocked)
    bounded = min(max(state.wanted, replicas.min), replicas.max)
    if bounded != state.wanted:
        return ReplicaDecision(bounded, ServiceReason.AS_NEEDED, f"replicas from {replicas.min} to {replicas.max}")
    if short > 0:
        return _more(state, short, needs, replicas)
    fewer = _fewer(state, needs, replicas)
    if fewer < state.wanted and not state.starting:
        message = f"at most {_show(needs.most_remove)} GPU needed of late: {fewer} pods suffice"
        return ReplicaDecision(fewer, ServiceReason.AS_NEEDED, message)
    return ReplicaDecision(state.wanted, ServiceReason.AS_NEEDED)


def _more(state: ReplicaState, short: float, needs: Needs, replicas: ReplicaRange) -> ReplicaDecision:
    need = f"{_show(needs.steady)} GPU needed, {_show(sum(state.capacities))} can be guaranteed"
    if state.wanted >= replicas.max:
        return ReplicaDecision(state.wanted, ServiceReason.AT_MAXIMUM, f"{need} by {state.wanted} pods")
    if state.starting:
        return ReplicaDecision(state.wanted, ServiceReason.WAITING_FOR_START, f"{need}; pods start")
    more = min(state.wanted + max(1, ceil(short / state.high)), replicas.max)
    return ReplicaDecision(more, ServiceReason.WAITING_FOR_START, f"{need}: {more} pods")


def _fewer(state: ReplicaState, needs: Needs, replicas: ReplicaRange) -> int:
    """Return the smallest number of pods, those with the most room, that would hold what was needed of late."""
    if needs.most_remove is None:
        return state.wanted
    room, held = 0, sorted(state.capacities, reverse=True)
    for count, each in enumerate(held, 1):
        room += each
        if count >= replicas.min and room >= needs.most_remove * GAP:
            return min(count, state.wanted)
    return state.wanted


def _without_replicas(state: ReplicaState, short: float, blocked: Sequence[int]) -> ReplicaDecision:
    if blocked:
        message = f"{show_milli(state.share)} GPU wanted, GPUs have room for {show_milli(min(blocked))}"
        return ReplicaDecision(state.wanted, ServiceReason.NO_ROOM, message)
    if short > 0 and state.capacities:
        return ReplicaDecision(state.wanted, ServiceReason.AT_MAXIMUM, f"{_show(short)} GPU more needed")
    return ReplicaDecision(state.wanted, ServiceReason.AS_NEEDED)


def _show(milli: float | None) -> str:
    return "-" if milli is None else f"{milli / WHOLE:.2f}"
