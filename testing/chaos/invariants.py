"""The invariants of a cluster: what must hold at every moment, and what must hold once it has settled. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.units import Mib, Milli
from testing.chaos.observe import ApiPod, End, NodeState, Observation, ProcessGpus
from testing.chaos.script import WHOLE, PodLifecycle

# The kubelet's own reasons for rejecting a pod while no device plugin answers.
_REJECTIONS = ("UnexpectedAdmissionError", "OutOfnvidia.com/")
# Exit codes: killed, and lost because containerd was killed or the node rebooted.
_KILLED, _LOST = 137, 255
# The end of containerd's message when the kubelet was killed during a container start.
_INTERRUPTED = "context canceled"


@dataclass(frozen=True, slots=True)
class RequestedPod:
    """A pod that the script created."""

    lifecycle: PodLifecycle
    sizes: tuple[int, ...]
    """In milli: the size at creation, then the size of each resize."""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The node's GPUs, by index."""

    gpus: Sequence[Gpu]

    def overcommitted(self, grants: Iterable[Grant]) -> list[str]:
        """Describe each GPU that is over-committed by grants; every pod here has one container."""
        sizes = {gpu.uuid: (int(gpu.milli), int(gpu.mib)) for gpu in self.gpus}
        milli, mib = Counter[str](), Counter[str]()
        for grant in grants:
            for held in (held for shares in grant.containers.values() for held in shares):
                milli[held.gpu] += sizes[held.gpu][0] if held.share.whole else held.share.milli
                mib[held.gpu] += sizes[held.gpu][1] if held.share.whole else held.share.mib
        return [
            f"{gpu}: {milli[gpu]} of {size[0]} milli, {mib[gpu]} of {size[1]} MiB"
            for gpu, size in sizes.items()
            if milli[gpu] > size[0] or mib[gpu] > size[1]
        ]

    def overcommitted_by_processes(self, processes: Iterable[ProcessGpus]) -> list[str]:
        """Describe each GPU that is over-committed by what processes have: their GPUs and limits pages."""
        milli, mib = Counter[str](), Counter[str]()
        for _, indices, tenant, shares in {(each.uid, each.gpus, each.tenant, each.shares) for each in processes}:
            whole = [(self.gpus[index].uuid, self.gpus[index].milli, self.gpus[index].mib) for index in indices]
            for gpu, of_time, of_memory in shares if tenant else whole:
                milli[gpu] += of_time
                mib[gpu] += of_memory
        return [
            f"{gpu.uuid}: processes have {milli[gpu.uuid]} milli and {mib[gpu.uuid]} MiB"
            for gpu in self.gpus
            if milli[gpu.uuid] > gpu.milli or mib[gpu.uuid] > gpu.mib
        ]


def overcommitted_on_node(capacity: NodeCapacity, node: NodeState) -> list[str]:
    """Violations that may never occur on the node: over-committed GPUs and processes without a record."""
    grants = {attachment.uid: attachment.grant for attachment in node.attachments.values()}
    lost = [f"pod {each.uid} runs with a share that has no record" for each in node.processes if each.lost]
    return [*capacity.overcommitted(grants.values()), *capacity.overcommitted_by_processes(node.processes), *lost]


def overcommitted_in_api(capacity: NodeCapacity, pods: Iterable[ApiPod]) -> list[str]:
    """GPUs that are over-committed by the grants in the API server."""
    living = (pod.grant for pod in pods if pod.phase not in {"Succeeded", "Failed"})
    return capacity.overcommitted(grant for grant in living if grant is not None)


def is_rejected(pod: ApiPod) -> bool:
    """Whether the kubelet rejected the pod for a reason of its own."""
    return pod.phase == "Failed" and pod.reason.startswith(_REJECTIONS)


def is_interrupted_start(end: End) -> bool:
    """Whether the kubelet was killed while it started the container."""
    return end[2].endswith(_INTERRUPTED)


def may_be_stranded(requested: RequestedPod, pod: ApiPod) -> bool:
    """Whether the kubelet may never start this pod; only the container runtime knows for sure.

    If the node loses power after the container of a `restartPolicy: Never` pod was created and before it was
    started, the kubelet believes that the container has run and that the pod has not ended. It then waits forever.
    """
    return requested.lifecycle is PodLifecycle.ONCE and bool(pod.node) and pod.phase == "Pending" and not pod.ends


def unexpected_end(pod: ApiPod, *, lost: bool, interrupted: Collection[End] = ()) -> str:
    """Describe why a pod or its container ended although it should not have; empty if it did not.

    `lost` means that containers were just lost with their runtime, so `restartPolicy: Never` pods may have failed.
    `interrupted` are the container starts during which the kubelet was killed.
    """
    ours = [end for end in pod.ends if end not in interrupted]
    for reason, code, message in ours:
        if code not in {0, _KILLED, _LOST} or reason in {"StartError", "ContainerCannotRun"}:
            return f"{pod.name}: its container ended with {reason} {code} {message}".rstrip()
    if pod.phase == "Failed" and not is_rejected(pod) and not lost and len(ours) == len(pod.ends):
        return f"{pod.name}: failed, {pod.reason} {pod.message}"
    return ""


def differences(
    requested: Mapping[str, RequestedPod],
    observation: Observation,
    capacity: NodeCapacity,
    fits: Callable[[str], bool],
) -> list[str]:
    """Describe what has not settled yet; `fits` says whether a waiting pod would fit now."""
    known = {pod.name: pod for pod in observation.pods}
    uids = {
        pod.uid: pod
        for pod in observation.pods
        if pod.name in requested and pod.phase not in {"Succeeded", "Failed"}
    }
    found = [f"{name}: does not exist" for name in requested if name not in known]
    found += [f"{name}: still exists after its deletion" for name in known if name not in requested]
    counted = sum(requested[pod.name].sizes[0] for pod in uids.values() if pod.node)

    def has_room(pod: ApiPod) -> bool:
        """Check the kubelet's count, too: it counts the size at creation, without resizes."""
        return counted + requested[pod.name].sizes[0] <= sum(gpu.milli for gpu in capacity.gpus) and fits(pod.uid)

    for pod in observation.pods:
        if pod.name in requested:
            found += _differences_of(requested[pod.name], pod, observation.node, capacity, has_room)
    for pod in uids.values():
        others = [other.grant for other in uids.values() if other is not pod and other.grant is not None]
        found += _resize(requested[pod.name], pod, others, capacity)
    found += [
        f"uid {each.uid}: a process of a pod that no longer exists"
        for each in observation.node.processes
        if each.uid not in uids
    ]
    found += [
        f"uid {attachment.uid}: the agent keeps {name} for a pod that no longer exists"
        for name, attachment in observation.node.attachments.items()
        if attachment.uid not in uids
    ]
    if unmatched := observation.node.files ^ frozenset(observation.node.attachments):
        found.append(f"CDI files and attachment records differ: {sorted(unmatched)}")
    bound = sum(bool(pod.node) for pod in uids.values())
    if observation.stages.get("bound", 0) != bound:
        found.append(
            f"the scheduler service counts {observation.stages.get('bound', 0)} bound pods instead of {bound}"
        )
    return found


def _resize(requested: RequestedPod, pod: ApiPod, others: Sequence[Grant], capacity: NodeCapacity) -> list[str]:
    """Describe a resize that was not carried out although the GPU has room for it."""
    if pod.grant is None or len(requested.sizes) == 1:
        return []
    ((held,),) = pod.grant.containers.values()
    size = requested.sizes[-1]
    resized = replace(held.share, milli=Milli(size), mib=Mib(capacity.gpus[0].mib * size // WHOLE))
    if held.share.milli == size or capacity.overcommitted(
        [replace(pod.grant, containers={"main": (GpuShare(held.gpu, resized),)}), *others]
    ):
        return []
    return [f"{pod.name}: has {held.share.milli} instead of {size} although the GPU has room"]


def _differences_of(
    requested: RequestedPod, pod: ApiPod, node: NodeState, capacity: NodeCapacity, fits: Callable[[ApiPod], bool]
) -> list[str]:
    if pod.phase == "Succeeded" and requested.lifecycle is PodLifecycle.JOB:
        return []
    if pod.phase == "Failed":
        return [f"{pod.name}: failed"]
    if not pod.node:
        return [f"{pod.name}: waits although it would fit"] if fits(pod) else []
    if not pod.running:
        return [f"{pod.name}: bound but not running: {pod.waiting} {pod.ends}"]
    processes = [each for each in node.processes if each.uid == pod.uid]
    return [
        f"{pod.name}: {wrong}" for wrong in _differences_while_running(requested, pod, processes, node, capacity)
    ]


def _differences_while_running(
    requested: RequestedPod, pod: ApiPod, processes: Sequence[ProcessGpus], node: NodeState, capacity: NodeCapacity
) -> list[str]:
    """Compare a pod's request, grant, attachment record and processes."""
    if pod.grant is None:
        return ["runs without a grant"]
    shares = [share for each in pod.grant.containers.values() for share in each]
    if not processes:
        return ["none of its processes has a GPU"]
    found: list[str] = []
    granted = {(held.gpu, int(held.share.milli), int(held.share.mib)) for held in shares if not held.share.whole}
    if any((WHOLE if held.share.whole else held.share.milli) not in requested.sizes for held in shares):
        found.append(f"was granted {shares} instead of one of {requested.sizes}")
    for each in processes:
        if {capacity.gpus[index].uuid for index in each.gpus} != set(pod.grant.gpus):
            found.append(f"has GPUs {sorted(each.gpus)} instead of {pod.grant.gpus}")
        if set(each.shares) != granted:
            found.append(f"reads {each.shares} instead of {granted}")
    attachments = [(name, attachment) for name, attachment in node.attachments.items() if attachment.uid == pod.uid]
    if [attachment.grant for _, attachment in attachments] != [pod.grant]:
        found.append(f"has {len(attachments)} attachment records, or one with another grant")
    if granted and {each.tenant for each in processes} != {name for name, _ in attachments}:
        found.append("has another tenant directory than its attachment record says")
    if not all(name in node.allocations for name, _ in attachments):
        found.append("has an attachment without an allocation")
    return found
