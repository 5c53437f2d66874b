"""The last check of a grant, on the node that enforces it. Pure.

The scheduler decides. The agent only checks that the grant is for this pod, this node and GPUs of this node, and
that it over-commits none of them, even if a paused scheduler or a forged annotation says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from milligpu.agent.attachment import Attachment
from milligpu.model.footprint import GpuDemand, grant_demands, larger_demand
from milligpu.model.gpu import Gpu, GpuState, SharingMode
from milligpu.model.reasons import AttachReason
from milligpu.model.units import Mib


@dataclass(frozen=True, slots=True)
class GrantProblem:
    """Why a container is refused, with the message for the pod's event."""

    reason: AttachReason
    message: str


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What a grant is checked against."""

    node: str
    gpus: Mapping[str, Gpu]
    used: Mapping[tuple[str, str], Mib] = field(default_factory=dict[tuple[str, str], Mib])
    """The memory in use by pod and GPU, of resized pods: a lowered memory limit frees only what is not in use."""


def check_grant(wanted: Attachment, here: NodeGpus, others: Iterable[Attachment]) -> GrantProblem | None:
    """Check whether a container may be attached next to `others`."""
    return _check_identity(wanted, here.node) or _check_gpus(wanted, here.gpus) or _check_sums(wanted, here, others)


def check_resized_grant(wanted: Attachment, here: NodeGpus, others: Iterable[Attachment]) -> GrantProblem | None:
    """Check the later grant of an attached container, which keeps its GPUs even if they are unhealthy."""
    return _check_identity(wanted, here.node) or _check_sums(wanted, here, others)


def _check_identity(wanted: Attachment, node: str) -> GrantProblem | None:
    grant, holder = wanted.grant, wanted.holder
    if grant.uid != holder.uid:
        message = f"the grant is for the pod with uid {grant.uid}, this pod has uid {holder.uid}"
        return GrantProblem(AttachReason.OTHER_POD, message)
    if grant.node != node:
        return GrantProblem(AttachReason.OTHER_NODE, f"the grant is for node {grant.node}, the pod is on {node}")
    if holder.container not in grant.containers:
        return GrantProblem(AttachReason.NO_SHARE, f"the grant has no share for container {holder.container}")
    return None


def _check_gpus(wanted: Attachment, gpus: Mapping[str, Gpu]) -> GrantProblem | None:
    for held in (held for shares in wanted.grant.containers.values() for held in shares):
        gpu = gpus.get(held.gpu)
        if gpu is None:
            return _unknown_gpu(held.gpu)
        if gpu.state is not GpuState.OK:
            message = f"GPU {held.gpu} is {gpu.state}: {gpu.message or 'no reason given'}"
            return GrantProblem(AttachReason.UNFIT_GPU, message)
        if gpu.mode is not SharingMode.SHARE and not (held.share.whole and gpu.mode is SharingMode.WHOLE):
            return GrantProblem(AttachReason.UNFIT_GPU, f"GPU {held.gpu} can only be used in mode {gpu.mode}")
    return None


def _check_sums(wanted: Attachment, here: NodeGpus, others: Iterable[Attachment]) -> GrantProblem | None:
    taken = demand_by_gpu((other for other in others if other.holder.uid != wanted.holder.uid), here)
    for uuid, demand in grant_demands(wanted.grant.containers, wanted.kinds, here.gpus).items():
        gpu = here.gpus.get(uuid)
        if gpu is None:
            return _unknown_gpu(uuid)
        total = demand.plus(taken[uuid]) if uuid in taken else demand
        if total.milli > gpu.allocatable or total.mib > gpu.allocatable_mib or (demand.whole and uuid in taken):
            message = (
                f"GPU {uuid} would be over-committed ({total.milli} of {gpu.allocatable} milli-GPU, "
                f"{total.mib} of {gpu.allocatable_mib} MiB)"
            )
            return GrantProblem(AttachReason.OVERCOMMIT, message)
    return None


def _unknown_gpu(uuid: str) -> GrantProblem:
    return GrantProblem(AttachReason.UNKNOWN_GPU, f"this node has no GPU {uuid}")


def demand_by_gpu(attachments: Iterable[Attachment], here: NodeGpus) -> dict[str, GpuDemand]:
    """Return what pods hold of each GPU."""
    total: dict[str, GpuDemand] = {}
    for (_, gpu), demand in _demand_by_pod(attachments, here).items():
        total[gpu] = total[gpu].plus(demand) if gpu in total else demand
    return total


def _demand_by_pod(attachments: Iterable[Attachment], here: NodeGpus) -> dict[tuple[str, str], GpuDemand]:
    """Return what each pod holds of each GPU: the larger of two generations of its grant, at least what it uses."""
    found: dict[tuple[str, str], GpuDemand] = {}
    for each in attachments:
        for gpu, demand in grant_demands(each.grant.containers, each.kinds, here.gpus).items():
            key = each.holder.uid, gpu
            used = replace(demand, mib=Mib(max(demand.mib, here.used.get(key, 0))))
            found[key] = larger_demand(used, found.get(key, used))
    return found
