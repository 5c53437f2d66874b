"""Why a pod waits, in one line: what is missing, with numbers, and what would help. For events and commands."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.state import ClusterState
from milligpu.model.grant import NoFit
from milligpu.model.policy import SharePolicy
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.request import PodRequest
from milligpu.model.requirements import ANY
from milligpu.placement import refuse
from milligpu.placement.snapshot import Holding

_SHORT = frozenset({Reason.INSUFFICIENT_CORE, Reason.INSUFFICIENT_MEMORY})
# Which pod ends first is a guess; only the GPUs that come nearest are considered.
_GPUS_MAX = 16


def explain_waiting(state: ClusterState, spec: SchedulingSpec) -> str:
    """Explain in one call, for commands."""
    steps = explain_waiting_in_steps(state, spec)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def explain_waiting_in_steps(state: ClusterState, spec: SchedulingSpec) -> Generator[None, None, str]:
    """Explain in steps, for the service: between steps pods may start and end, but nodes must stay the same."""
    if spec.request is None:
        return spec.mistake
    admitted = state.nodes.admitted(spec.constraints)
    count = len(state.nodes.considered(spec.constraints))
    asked = spec.request.gpu_class
    refused = None if asked is None else state.placer.classes.refusal(asked)
    if refused is not None:
        return f"0/{count} nodes: {count} {refused[0]} ({refused[1]})"
    names = () if asked is None else state.placer.classes.chain(asked)
    first, *fallbacks = _by_requirements(state, spec.request)
    found = yield from refuse.explain_in_steps(state.placer, first, admitted)
    excluded = tuple(
        Refusal(Reason.NODE_EXCLUDED, name, message=why)
        for name, why in state.nodes.excluded(spec.constraints).items()
    )
    whole = NoFit(found.refusals + excluded, count, "")
    ways = [
        way
        for way in (
            found.nearest,
            _unrestricted(state, spec, admitted),
            _leaving(state, spec, first, found),
            _policy_command(spec.request, found),
        )
        if way
    ]
    others = yield from _fallbacks(state, names[1:], fallbacks, admitted)
    tries = f"; try {', or '.join(ways)}" if ways else ""
    return whole.summary() + others + tries + _away(state, found) + _unreadable(state)


def _away(state: ClusterState, found: NoFit) -> str:
    """Say since when a node's agent has been away, and what to do."""
    away = sorted({refusal.node for refusal in found.refusals if refusal.reason is Reason.AGENT_AWAY})
    if not away:
        return ""
    more = f", and {len(away) - 1} more nodes like it" if len(away) > 1 else ""
    return f"; {away[0]}: {state.placer.snapshot.nodes[away[0]].gpus[0].message}{more}"


def _by_requirements(state: ClusterState, request: PodRequest) -> list[PodRequest]:
    """The request for its class and for each fallback, by requirements: classes may change between steps."""
    return [
        replace(asked, gpu_class=None, requirements=state.placer.spec(asked).key.requirements)
        for asked in state.placer.alternatives(request)
    ]


def _fallbacks(
    state: ClusterState, names: Sequence[str], fallbacks: Sequence[PodRequest], admitted: list[str]
) -> Generator[None, None, str]:
    """Say for each fallback of the pod's class why it does not help either."""
    text = ""
    for name, asked in zip(names, fallbacks, strict=True):
        found = yield from refuse.explain_in_steps(state.placer, asked, admitted)
        text += f"; fallback {name}: {NoFit(found.refusals, found.nodes).summary()}"
    return text


def _unreadable(state: ClusterState) -> str:
    found = state.unreadable_grants()
    if not found:
        return ""
    more = f", and {len(found) - 1} more like it" if len(found) > 1 else ""
    return f"; {describe_unreadable(found[0])}{more}"


def describe_unreadable(entry: PodEntry) -> str:
    """Say that a pod's grant cannot be read, what that means for others, and why."""
    assert entry.unreadable is not None
    what = ", ".join(entry.unreadable.named) or "every GPU"
    return f"pod {entry.spec.pod} counts as holding {what} on {entry.node} whole: {entry.unreadable.problem}"


def _policy_command(request: PodRequest, found: NoFit) -> str:
    """Name the command by which an admin gives a GPU a share policy that serves the request."""
    refused = [refusal for refusal in found.refusals if refusal.reason is Reason.POLICY_MISMATCH]
    if not refused:
        return ""
    policy = SharePolicy.EQUAL if request.policy is SharePolicy.EQUAL else SharePolicy.BEST_EFFORT
    return f"`milligpu gpu policy {refused[0].gpu} {policy}` (an admin)"


def _unrestricted(state: ClusterState, spec: SchedulingSpec, admitted: list[str]) -> str:
    """Name the model that the pod would get without its requirements."""
    request = spec.request
    assert request is not None
    if request.requirements == ANY and request.gpu_class is None:
        return ""
    grant = state.placer.place(replace(request, requirements=ANY, gpu_class=None), admitted)
    if grant is None or not grant.gpus:
        return ""
    gpu = next(gpu for gpu in state.placer.snapshot.nodes[grant.node].gpus if gpu.uuid == grant.gpus[0])
    asked = "class" if request.gpu_class is not None else "require"
    return f"{gpu.model} (fits now without milligpu.dev/{asked})"


def _leaving(state: ClusterState, spec: SchedulingSpec, request: PodRequest, found: NoFit) -> str:
    """Name a pod whose end would make room, for requests that need one GPU."""
    if not _one_gpu(request):
        return ""
    short = [refusal for refusal in found.refusals if refusal.reason in _SHORT and refusal.gpu]
    short.sort(key=lambda refusal: refusal.best / refusal.wanted, reverse=True)
    ends = [end for refusal in short[:_GPUS_MAX] for end in _ends(state, request, refusal)]
    if not ends:
        return ""
    holding, refusal = min(ends, key=lambda end: (end[0].priority, sum(d.milli for _, d in end[0].demands)))
    entry = state.entry(holding.pod)
    if entry is not None and entry.spec.pod.namespace == spec.pod.namespace:
        return f"again when pod {entry.spec.pod.name} on {refusal.where} ends"
    return f"again when a pod on {refusal.where} ends"


def _ends(state: ClusterState, request: PodRequest, refusal: Refusal) -> list[tuple[Holding, Refusal]]:
    snap = state.placer.snapshot
    cell = snap.cell_of[refusal.node, refusal.gpu]
    demand = state.placer.spec(request).needs[int(snap.kind[cell[0]])].demands[-1]
    milli, mib, others = int(snap.milli[cell]), int(snap.mib[cell]), int(snap.tenants[cell])
    ends: list[tuple[Holding, Refusal]] = []
    for holding in snap.holdings_on(refusal.node):
        for uuid, held in holding.demands:
            alone = not demand.whole or others == 1
            if (
                uuid == refusal.gpu
                and alone
                and milli + held.milli >= demand.milli
                and mib + held.mib >= demand.mib
            ):
                ends.append((holding, refusal))
    return ends


def _one_gpu(request: PodRequest) -> bool:
    shares = [container.share for container in request.containers if container.share is not None]
    return len(shares) == 1 and shares[0].count == 1
