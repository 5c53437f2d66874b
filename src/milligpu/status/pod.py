"""What a pod waits for, or which GPUs it has: as `milligpu explain` says it."""

from dataclasses import dataclass
from typing import Any

from milligpu import dialects
from milligpu.cluster.capacity import show_versions
from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.explain_room import explain_room
from milligpu.cluster.observed import ObservedPod
from milligpu.cluster.place_reasons import depends_on_pods, explain_place
from milligpu.cluster.preemption import lower_priority
from milligpu.cluster.read import PodReader
from milligpu.cluster.resize import (
    describe_grant,
    explain_resize,
    impossible_for,
    missing_for,
    wanted_grant,
)
from milligpu.cluster.state import ClusterState
from milligpu.kube import fetch
from milligpu.kube.api import ApiRefused
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.grant import Grant
from milligpu.model.reasons import AmountUnit, EventReason
from milligpu.model.units import show_mib, show_milli
from milligpu.status.queues import read_overview
from milligpu.status.state import read_state
from milligpu.wire.driver import gpus_of_node
from milligpu.wire.kubernetes import KubePod

_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """A pod's state, and a sentence about it."""

    namespace: str
    pod: str
    state: str
    text: str


def explain_pod(client: Any, namespace: str, name: str) -> PodExplanation:
    """Explain a pod by today's numbers, or by its last event for a user who may not list nodes and pods."""
    found = fetch.get_pod(client, namespace, name)
    pod = PodReader(dialects.read_pod).read(found)
    if pod.node:
        state, text = "bound", _held(pod) + _why_there(client, found, pod) + _gpus(client, pod)
        text += explain_resize_of_pod(client, pod)
    elif not pod.spec.wants_gpu:
        state, text = "no-gpu", "the pod asks for no GPU; `kubectl describe pod` shows why it waits"
    elif pod.spec.takes_turns and pod.queued:
        state, text = "queued", _explain_queued(client, pod)
    elif pod.gated:
        state, text = "gated", "the pod has scheduling gates; the scheduler ignores it until they are removed"
    else:
        state, text = "waiting", _explain_waiting(client, pod)
    return PodExplanation(namespace, name, state, text)


def _held(pod: ObservedPod) -> str:
    if pod.unreadable is not None:
        return f"on {pod.node}; {pod.unreadable.problem}; until it can be read, its GPUs count as held whole"
    if pod.grant is None:
        return f"on {pod.node}, without a grant: no GPU is attached to it"
    return f"on {pod.node}; {_by_class(pod, pod.grant)}{describe_grant(pod.grant)}"


def _why_there(client: Any, found: KubePod, pod: ObservedPod) -> str:
    """Say which preferences of the pod its node meets; empty if the user cannot read nodes or pods."""
    try:
        if not depends_on_pods(found):
            return "".join(f"; {why}" for why in explain_place(found, [fetch.get_node(client, pod.node)], ()))
        reasons = explain_place(found, fetch.list_nodes(client), fetch.list_pods(client))
    except ApiRefused:
        return ""
    return "".join(f"; {why}" for why in reasons)


def _by_class(pod: ObservedPod, grant: Grant) -> str:
    """Say by which class the GPUs were chosen."""
    if grant.gpu_class is None:
        return ""
    asked = None if pod.spec.request is None else pod.spec.request.gpu_class
    instead = "" if asked in {None, grant.gpu_class} else f", a fallback of {asked}"
    return f"class {grant.gpu_class}{instead}; "


def _gpus(client: Any, pod: ObservedPod) -> str:
    """Say what is known about the pod's GPUs: the share policies, on which limits depend, and the driver.

    Empty if the user cannot read the node.
    """
    if pod.grant is None:
        return ""
    try:
        found = gpus_of_node(fetch.get_node(client, pod.node).metadata.annotations)
    except (ApiRefused, BadFormat):
        return ""
    gpus = [gpu for gpu in found if gpu.uuid in pod.grant.gpus]
    shared = any(not each.share.whole for shares in pod.grant.containers.values() for each in shares)
    policies = ", ".join(dict.fromkeys(str(gpu.policy) for gpu in gpus)) if shared else ""
    facts = (
        ("share policy of the GPU: ", policies),
        ("driver ", show_versions(gpu.driver for gpu in gpus)),
        ("CUDA ", show_versions(gpu.cuda for gpu in gpus)),
    )
    return "".join(f"; {name}{value}" for name, value in facts if value)


def _read_cluster(client: Any) -> ClusterState | None:
    """Read the cluster; None if this user may not."""
    try:
        return read_state(client)
    except ApiRefused as error:
        if error.status != _FORBIDDEN:
            raise
        return None


def explain_resize_of_pod(client: Any, pod: ObservedPod) -> str:
    """Say what the pod lacks for the share that it wants instead of its present one."""
    if pod.grant is None or (not pod.resize and pod.spec.floor is None):
        return ""
    state = _read_cluster(client)
    if state is None:
        events = fetch.event_messages(client, pod.spec.pod.namespace, pod.uid, EventReason.RESIZE_WAITS)
        return f"; {events[-1]}" if events else ""
    try:
        entry = state.entry(pod.uid)
        grant = None if entry is None else wanted_grant(state, entry)
        if entry is None or grant is None:
            return ""
        if refused := refused_resize(client, pod.spec.pod.namespace, pod.uid, pod.resize):
            return f"; {refused}"
        never = impossible_for(state, entry, grant)
        if never is not None:
            return f"; can never have {describe_grant(grant)}: {never.where} has {never.amounts}"
        missing = missing_for(state, entry, grant)
        message = explain_resize(missing) if missing else "there is room for it"
    except BadRequest as error:
        return f"; {error.message}"
    return f"; wants {describe_grant(grant)}; {message}"


def _explain_queued(client: Any, pod: ObservedPod) -> str:
    state = _read_cluster(client)
    if state is None:
        events = [
            message
            for reason in (EventReason.QUEUE_GONE, EventReason.QUEUED)
            for message in fetch.event_messages(client, pod.spec.pod.namespace, pod.uid, reason)
        ]
        return events[-1] if events else "the pod waits for its turn; no event about it yet"
    return read_overview(client, state).explain(pod.uid)


def _explain_waiting(client: Any, pod: ObservedPod) -> str:
    state = _read_cluster(client)
    if state is None:
        events = fetch.event_messages(client, pod.spec.pod.namespace, pod.uid, EventReason.GPU_UNAVAILABLE)
        return (
            events[-1]
            if events
            else (
                "no scheduling event for this pod yet; "
                "with permission to list nodes and pods, this command computes the reason itself"
            )
        )
    if state.fits(pod.spec):
        where = f", on {pod.nominated}" if pod.nominated else ""
        return f"the pod fits now: the scheduler will place it{where}"
    room = explain_room(state, pod.spec, lower_priority(pod.spec))
    return explain_waiting(state, pod.spec) + (f"; {room}" if room else "")


def refuse_impossible_resize(client: Any, pod: KubePod, grant: Grant) -> None:
    """Refuse a resize for which waiting would not help, as far as this user may look."""
    state = _read_cluster(client)
    entry = None if state is None else state.entry(pod.metadata.uid)
    never = None if state is None or entry is None else impossible_for(state, entry, grant)
    if never is not None:
        compute = never.unit is AmountUnit.COMPUTE
        show = show_milli if compute else show_mib
        want = f"at most {show(never.best)}, which is all that {never.where} has for pods"
        raise BadRequest("-p" if compute else "-m", show(never.wanted), want)


def refused_resize(client: Any, namespace: str, uid: str, text: str) -> str:
    """Why the scheduler refused the resize that this annotation asks for; empty if it did not."""
    messages = fetch.event_messages(client, namespace, uid, EventReason.BAD_RESIZE)
    return next((each for each in reversed(messages) if repr(text) in each), "")
