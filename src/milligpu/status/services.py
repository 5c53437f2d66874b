"""Services for commands: what an update of one would do now, by the rules of the scheduler service."""

from dataclasses import dataclass, replace

from milligpu.cluster.explain import explain_waiting
from milligpu.cluster.loans import describe_memory, lenders_for
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.gpu_service import GpuService
from milligpu.model.grant import Grant
from milligpu.model.reasons import ServiceReason
from milligpu.model.request import PodRef
from milligpu.model.units import show_milli
from milligpu.scheduler.service_pods import grant_of, service_pod, watched_pod
from milligpu.services.updates import ServicePod
from milligpu.wire.kubernetes import KubePod
from milligpu.wire.scale import ScaleSelector


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a new pod of a service would get its place now."""

    possible: bool
    reason: ServiceReason
    message: str


def plan_update(
    state: ClusterState, service: GpuService, pods: list[KubePod], selector: ScaleSelector
) -> UpdatePlan | None:
    """Return how one more pod with the template of the present ones gets its place; None if no pod runs."""
    mine = [
        each
        for each in pods
        if each.metadata.namespace == service.namespace and selector.matches(each.metadata.labels)
    ]
    found: list[tuple[PodEntry, ServicePod]] = []
    for each in mine:
        entry = state.entry(each.metadata.uid)
        pod = None if entry is None else service_pod(state, entry, watched_pod(each))
        if entry is not None and pod is not None and not pod.leaving:
            found.append((entry, pod))
    if not found:
        return None
    first, _ = found[0]
    spec = replace(first.spec, pod=PodRef(service.namespace, f"{service.target.name}-new", "new"))
    if state.fits(spec):
        return UpdatePlan(True, ServiceReason.UPDATING, "a GPU has room for the new pod next to all others")
    borrowers = _borrowers(state)
    if lenders := lenders_for(state, spec, borrowers):
        names = ", ".join(str(state.pods[uid].spec.pod) for uid in lenders)
        return UpdatePlan(True, ServiceReason.UPDATING, f"loans make room for the new pod: {names} give them back")
    high = service.share.max
    lent = {each.uid: grant_of(entry, 0, high) for entry, each in found if each.ready and each.resizable}
    if lenders := lenders_for(state, spec, {**borrowers, **lent}):
        [old] = [each for _, each in found if each.uid in lenders][:1]
        name = state.pods[old.uid].spec.pod.name
        message = f"pod {name} lends its {show_milli(old.present)} GPU until the new pod is bound, and serves on"
        return UpdatePlan(True, ServiceReason.LENDING, message)
    if lenders_for(state, spec, {**borrowers, **dict.fromkeys(lent)}):
        return UpdatePlan(False, ServiceReason.MEMORY_HOLDS_ONE, describe_memory(state, spec, lent))
    return UpdatePlan(False, ServiceReason.NO_ROOM, explain_waiting(state, spec))


def _borrowers(state: ClusterState) -> dict[str, Grant]:
    """Return the pods of services that hold more than their template, with their grants without that."""
    found: dict[str, Grant] = {}
    for entry in state.pods.in_services.values():
        request, node = entry.spec.request, state.placer.snapshot.nodes.get(entry.node)
        if entry.stage is not PodStage.BOUND or entry.grant is None or request is None or node is None:
            continue
        gpus = {gpu.uuid: gpu for gpu in node.gpus}
        for each in request.containers:
            for held in entry.grant.containers.get(each.name, ()):
                asked = None if each.share is None else each.share.resolve(gpus[held.gpu], request.policy)
                if asked is not None and held.share.milli > asked.milli:
                    found[entry.spec.pod.uid] = grant_of(entry, asked.milli, held.share.limit)
    return found
