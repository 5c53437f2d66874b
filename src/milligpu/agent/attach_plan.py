"""Which containers to attach, resize and detach now, from what is allocated, known and running. Pure.

The plan is made again after every event and always considers everything, so a missed event does no harm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from milligpu.agent.attachment import Allocation, Attachment
from milligpu.agent.grant_check import GrantProblem, NodeGpus, check_grant, check_resized_grant
from milligpu.model.errors import MilligpuError
from milligpu.model.grant import Grant, grant_of_unknown_size
from milligpu.model.reasons import AttachReason
from milligpu.model.request import ContainerKind, ContainerRef, PodRef, container_of_uid
from milligpu.wire.grant import decode_grant


@dataclass(frozen=True, slots=True)
class NodePod:
    """What the agent needs of a pod of this node, as the API server has it."""

    ref: PodRef
    kinds: Mapping[str, ContainerKind] = field(hash=False)
    """Its containers, in the order in which they start."""
    grant: str | None = None
    """The annotation's text."""
    finished: bool = False
    """Succeeded or failed: it will not start a container again."""
    owned: bool = False
    """A controller replaces it if it is deleted."""
    capabilities: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """The driver capabilities that containers ask for (`NVIDIA_DRIVER_CAPABILITIES`), by container."""
    may_strand: bool = False
    """It starts once (`restartPolicy: Never`), and no container of it has run, as far as the API server knows."""


@dataclass(frozen=True, slots=True)
class AttachInput:
    """Everything that the plan depends on. Mappings are by the allocation's name unless they say otherwise."""

    allocations: Sequence[Allocation]
    holders: Mapping[str, ContainerRef]
    """Without the allocations whose container is not known yet."""
    pods: Mapping[str, NodePod]
    """By uid."""
    attached: Mapping[str, Attachment]
    running: frozenset[str]
    """Uids of pods that still have processes here."""
    here: NodeGpus
    newer: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Attachments that a newer agent wrote, with the GPUs that they name."""
    driver_problem: str = ""
    """Why no container can be attached now, whatever its grant says."""


@dataclass(frozen=True, slots=True)
class RefusedAttachment:
    """A container that cannot start now, and why."""

    name: str
    holder: ContainerRef
    problem: GrantProblem


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """What to do; carrying it out twice does no harm."""

    attach: tuple[Attachment, ...]
    detach: tuple[str, ...]
    """Names of allocations whose container will not start again."""
    refused: tuple[RefusedAttachment, ...]
    resize: tuple[Attachment, ...] = ()
    """Running containers whose pod has a later grant."""
    held_back: tuple[str, ...] = ()
    """Names of attachments whose later grant does not fit yet."""


def plan_attachments(view: AttachInput) -> AttachPlan:
    """Make the plan. Of two containers that do not fit together, the one that the kubelet allocated first wins."""
    gone = tuple(name for name in view.holders if _is_gone(view, name))
    present = {name: each for name, each in view.attached.items() if name not in gone}
    newer = [
        newer_attachment(name, gpus, view.here, view.holders.get(name))
        for name, gpus in view.newer.items()
        if name not in gone
    ]
    # A shrunk pod counts with its old grant, too, until it is known how much memory it still uses.
    before = [*present.values(), *newer]
    resized, held_back = _resized(view, present, before)
    present |= {each.name: each for each in resized}
    refused: list[RefusedAttachment] = []
    fresh: list[Attachment] = []
    for allocation in sorted(view.allocations, key=lambda each: each.number):
        name, holder = allocation.name, view.holders.get(allocation.name)
        if holder is None or name in present or name in gone or name in view.newer:
            continue
        decided = _decide(view, name, holder, [*before, *present.values()])
        if isinstance(decided, Attachment):
            present[name] = decided
            fresh.append(decided)
        else:
            refused.append(RefusedAttachment(name, holder, decided))
    return AttachPlan(tuple(fresh), gone, tuple(refused), resized, held_back)


def newer_attachment(
    name: str, gpus: Iterable[str], here: NodeGpus, holder: ContainerRef | None = None
) -> Attachment:
    """Stand in for an attachment whose record cannot be read: it holds all of each GPU that the record names."""
    holder = holder or container_of_uid(name, "unknown")
    grant = grant_of_unknown_size(holder.uid, here.node, gpus, here.gpus, holder.container)
    return Attachment(name, holder, grant, {})


def _resized(
    view: AttachInput, present: Mapping[str, Attachment], before: Sequence[Attachment]
) -> tuple[tuple[Attachment, ...], tuple[str, ...]]:
    """Return the attachments with a later grant that fits, and the names of those with one that does not."""
    found: dict[str, Attachment] = {}
    held_back: list[str] = []
    for each in present.values():
        later = _later(view, each)
        if later is not None and check_resized_grant(later, view.here, [*before, *found.values()]) is None:
            found[each.name] = later
        elif later is not None:
            held_back.append(each.name)
    return tuple(found.values()), tuple(held_back)


def _later(view: AttachInput, each: Attachment) -> Attachment | None:
    pod = view.pods.get(each.holder.uid)
    grant = read_grant(pod) if pod is not None else None
    if pod is None or not isinstance(grant, Grant) or grant.generation <= each.grant.generation:
        return None
    same = grant.gpus == each.grant.gpus and each.holder.container in grant.containers
    return Attachment(each.name, each.holder, grant, pod.kinds) if same else None


def _is_gone(view: AttachInput, name: str) -> bool:
    uid = view.holders[name].uid
    pod = view.pods.get(uid)
    return (pod is None or pod.finished) and uid not in view.running


def _decide(
    view: AttachInput, name: str, holder: ContainerRef, others: Sequence[Attachment]
) -> Attachment | GrantProblem:
    pod = view.pods.get(holder.uid)
    if pod is None:
        return GrantProblem(AttachReason.NO_GRANT, "the API server no longer has this pod")
    grant = read_grant(pod)
    if isinstance(grant, GrantProblem):
        return grant
    wanted = Attachment(name, ContainerRef(pod.ref, holder.container), grant, pod.kinds)
    problem = check_grant(wanted, view.here, others)
    if problem is None and view.driver_problem:
        problem = GrantProblem(AttachReason.DRIVER_NOT_READY, view.driver_problem)
    return problem or wanted


# Every plan reads the grant of every pod; a node has some hundred pods at most.
_decoded = lru_cache(1024)(decode_grant)


def read_grant(pod: NodePod) -> Grant | GrantProblem:
    """Read the pod's grant as the scheduler wrote it."""
    if pod.grant is None:
        message = "the pod was bound without a grant, probably by a scheduler without milligpu's extender"
        return GrantProblem(AttachReason.NO_GRANT, message)
    try:
        return _decoded(pod.grant)
    except MilligpuError as error:
        return GrantProblem(AttachReason.BAD_GRANT, error.message)
