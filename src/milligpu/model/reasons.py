"""Reasons: CamelCase codes of closed sets, one set per place where a person reads them.

People look each one up in `docs/reasons.md`, and programs count them. The sentence next to a reason is its message.
"""

from dataclasses import dataclass
from enum import StrEnum

from milligpu.model.gpu import GpuState, short_uuid
from milligpu.model.units import show_mib, show_milli


class Reason(StrEnum):
    """Why a GPU or node does not fit; `docs/reasons.md` explains each and says what helps."""

    INSUFFICIENT_CORE = "InsufficientGPUCore"
    """The GPU has too few milli-GPU free."""
    INSUFFICIENT_MEMORY = "InsufficientGPUMemory"
    """The GPU has too little memory free."""
    INSUFFICIENT_GPUS = "InsufficientGPUs"
    """The node has too few GPUs that fit, and the request needs several."""
    TOO_LARGE = "LargerThanGPU"
    """The GPU is smaller than the request, even when empty."""
    MODEL_MISMATCH = "ModelMismatch"
    """The GPU is of another model, or of one that the request excludes."""
    UUID_MISMATCH = "UUIDMismatch"
    """The request names other GPUs."""
    MEMORY_SIZE = "CardMemoryTooSmall"
    """The GPU's total memory is below the required minimum."""
    CAPABILITY = "ComputeCapabilityTooLow"
    """The GPU's compute capability is below the required minimum."""
    DRIVER = "DriverTooOld"
    """The node's driver is older than the required minimum."""
    CUDA = "CUDATooOld"
    """The node's driver supports only an older CUDA than the required minimum."""
    DRIVER_UNKNOWN = "DriverUnknown"
    """The node's agent does not report the version that the request compares."""
    NO_ECC = "NoECC"
    """ECC is required, and the GPU has none or it is off."""
    NO_NVLINK = "NoNVLink"
    """NVLink between the GPUs is required, and no such GPU set is free."""
    NUMA_SPLIT = "NUMASplit"
    """GPUs on one NUMA node are required, and no node has enough of them free."""
    AFFINITY = "AffinityElsewhere"
    """Pods with the same affinity label are on another GPU."""
    ANTI_AFFINITY = "AntiAffinity"
    """A pod with the same anti-affinity label is on the GPU."""
    EXCLUSION = "Exclusion"
    """Pods with another exclusion label, or with none, are on the GPU."""
    POLICY_MISMATCH = "PolicyMismatch"
    """The share policy of the GPU does not give what the request names."""
    MODE_MISMATCH = "ModeMismatch"
    """The GPU has another sharing mode: only whole, or in hardware partitions."""
    CORDONED = "Cordoned"
    """An admin cordoned the GPU."""
    UNHEALTHY = "Unhealthy"
    """The GPU's health checks fail."""
    SUSPENDED = "Suspended"
    """The node's VM is suspended by its layout."""
    AGENT_AWAY = "AgentAway"
    """The node's agent is away, so no container could be attached."""
    NODE_CPU = "InsufficientCPU"
    """The node has a GPU but too little CPU."""
    NODE_MEMORY = "InsufficientMemory"
    """The node has a GPU but too little main memory."""
    NO_GPU = "NoGPU"
    """The node has no GPU."""
    NODE_EXCLUDED = "NodeExcluded"
    """The pod's node selector, affinity or tolerations keep it from the node."""
    CLASS_GONE = "ClassGone"
    """The class that the pod names does not exist; it was deleted while the pod waited."""
    CLASS_INVALID = "ClassInvalid"
    """The requirements of the class that the pod names cannot be read."""


# Reasons that resolve themselves as other pods end; all others need a person or another node.
RESOLVABLE = frozenset(
    {
        Reason.INSUFFICIENT_CORE,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_GPUS,
        Reason.NO_NVLINK,
        Reason.NUMA_SPLIT,
        Reason.AFFINITY,
        Reason.ANTI_AFFINITY,
        Reason.EXCLUSION,
        Reason.NODE_CPU,
        Reason.NODE_MEMORY,
    }
)


def reason_of_state(state: GpuState) -> Reason:
    """Why a GPU in this state gets no new share."""
    return _OF_STATE[state]


_OF_STATE = {
    GpuState.CORDONED: Reason.CORDONED,
    GpuState.UNHEALTHY: Reason.UNHEALTHY,
    GpuState.NO_AGENT: Reason.AGENT_AWAY,
    GpuState.SUSPENDED: Reason.SUSPENDED,
}


class ClassReason(StrEnum):
    """The reason of the condition `Ready` of a `GpuClass`."""

    USABLE = "Usable"
    """The class is as its author wrote it."""
    INVALID_REQUIREMENTS = "InvalidRequirements"
    """Its requirements cannot be read: its pods wait."""
    FALLBACK_CYCLE = "FallbackCycle"
    """Its fallbacks lead to a class that was tried before: each is tried once."""
    FALLBACK_GONE = "FallbackGone"
    """Its fallback does not exist: its pods get GPUs of the class itself only."""


class QueueReason(StrEnum):
    """Why a pod waits in its queue, and the reason of the condition `Ready` of a `GpuQueue`."""

    USABLE = "Usable"
    """The queue is as its author wrote it."""
    INVALID = "InvalidQueue"
    """The queue contradicts another one: its pods wait."""
    GONE = "QueueGone"
    """The pod's queue does not exist."""
    BAD_REQUEST = "BadRequest"
    """The pod's request cannot be read; admission would refuse it today."""
    WAITS_FOR_TURN = "WaitsForTurn"
    """Other pods of the queue come before, and room for the first of them is kept."""
    NO_ROOM = "WaitsForRoom"
    """It is the pod's turn, and no GPU has room for it."""
    GROUP_INCOMPLETE = "GroupIncomplete"
    """Fewer pods of the group exist than have to start together."""
    CEILING = "QueueCeiling"
    """The queue, or one above it, has all that it may have."""
    KEPT_FOR_OWNERS = "KeptForOwners"
    """What is free belongs to queues that do not lend."""
    ADMITTED = "Admitted"
    """The pod's turn has come, and a place is reserved for it."""


class CalendarReason(StrEnum):
    """The reason of the condition `Ready` of a `GpuCalendar`."""

    IN_FORCE = "InForce"
    """The layout that the calendar asks for holds."""
    PAUSED = "Paused"
    """The calendar switches nothing until its pause ends."""
    SWITCHING = "Switching"
    """A switch is under way."""
    SWITCH_FAILED = "SwitchFailed"
    """The last switch was rolled back or is held."""
    HYPERVISOR_AWAY = "HypervisorAway"
    """A switch is due, and the hypervisor of its VMs does not answer: the present layout stays."""
    LAYOUT_GONE = "LayoutGone"
    """It names a layout that does not exist: the present layout stays."""
    LAYOUT_INVALID = "LayoutInvalid"
    """It names a layout that cannot be read: the present layout stays."""
    INVALID = "Invalid"
    """The calendar itself cannot be read: the present layout stays."""
    NODES_TAKEN = "NodesTaken"
    """It selects nodes that another calendar has, and they stay with that one."""


class NodeReason(StrEnum):
    """The reason of the condition `milligpu.dev/Suspended` of a node."""

    SUSPENDED = "Suspended"
    """Its VM is suspended, or about to be; the message says until when."""
    RESUMED = "Resumed"
    """Its VM runs again."""


class LayoutReason(StrEnum):
    """The reason of the condition `Ready` of a `GpuLayout`."""

    USABLE = "Usable"
    """A calendar can switch to it."""
    INVALID = "Invalid"
    """It cannot be read: calendars that name it keep the present layout."""


class ServiceReason(StrEnum):
    """The reasons of the conditions `Ready`, `MetricsFresh`, `Scaled` and `Updated` of a `GpuService`."""

    FOLLOWING = "Following"
    """Ready: shares and replicas follow the load."""
    PAUSED = "Paused"
    """Ready: shares and replicas stay as they are until somebody resumes the service."""
    INVALID = "Invalid"
    """Not ready: the service cannot be read; its pods keep the shares that they have."""
    TARGET_NOT_FOUND = "TargetNotFound"
    """Not ready: what `scaleTargetRef` names does not exist."""
    CONFLICT = "Conflict"
    """Not ready: an older service has the same target, and that one rules."""
    FRESH = "Fresh"
    """All ready pods say what they serve."""
    COLLECTING = "Collecting"
    """The first window is not full yet, so nothing is decided."""
    METRICS_MISSING = "MetricsMissing"
    """A pod does not say what it serves: the last decision holds."""
    COUNTER_UNKNOWN = "CounterUnknown"
    """A pod's page lacks a metric that the service names: the last decision holds."""
    AS_NEEDED = "AsNeeded"
    """The pods have the shares that the load needs."""
    NO_ROOM = "NoRoom"
    """The pods' GPUs have too little free, or no GPU has room for the new pod of an update."""
    AT_MAXIMUM = "AtMaximum"
    """The load needs more than `share.max` of `replicas.max` pods."""
    WAITING_FOR_START = "WaitingForStart"
    """The load needs more pods; none is added while earlier ones start."""
    QUOTA_COUNTS_TEMPLATE = "QuotaCountsTemplate"
    """A quota or a queue counts the pods' shares, so they cannot grow beyond their template."""
    WHOLE_GPU = "WholeGPU"
    """The pods hold whole GPUs, which cannot be resized: only replicas follow the load."""
    OTHER_AUTOSCALER = "OtherAutoscaler"
    """A HorizontalPodAutoscaler has the same target and owns the replicas; or users resized pods themselves."""
    UP_TO_DATE = "UpToDate"
    """No new pod of the target waits or starts."""
    UPDATING = "Updating"
    """A new pod has a place, and starts."""
    LENDING = "LendingShare"
    """A new pod waits, and a pod of the former version lends it its guarantee until it is bound."""
    MEMORY_HOLDS_ONE = "MemoryHoldsOneVersion"
    """The GPU's memory holds one version of the pod, and no other GPU has room for the new one."""
    START_FAILED = "StartFailed"
    """A new pod was not Ready by `update.deadline`; the pods of the former version have their shares."""


class ServerReason(StrEnum):
    """The reason of the condition `Ready` of a `GpuServer`."""

    SERVING = "Serving"
    """Pods may get shares of its GPUs."""
    DRAINING = "Draining"
    """An admin drains it: pods keep their shares, and no more are given."""
    NO_GPU = "NoGpu"
    """Its machine has no GPU."""


class AttachReason(StrEnum):
    """Why the agent does not start a container with the grant of its pod. Each is also an `EventReason`."""

    NO_GRANT = "NoGrant"
    BAD_GRANT = "BadGrant"
    OTHER_POD = "GrantOfAnotherPod"
    OTHER_NODE = "GrantForAnotherNode"
    NO_SHARE = "ContainerNotInGrant"
    UNKNOWN_GPU = "UnknownGPU"
    UNFIT_GPU = "GPUNotUsable"
    OVERCOMMIT = "GPUOverCommitted"
    DRIVER_NOT_READY = "DriverNotReady"


class EventReason(StrEnum):
    """The reason of every Kubernetes event that milligpu writes."""

    GPU_UNAVAILABLE = "GPUUnavailable"
    """The pod waits, because no GPU fits; written by the scheduler."""
    QUEUED = "Queued"
    """The pod waits in its queue."""
    QUEUE_GONE = QueueReason.GONE
    """The pod's queue does not exist."""
    PREEMPTED = "Preempted"
    """The pod is evicted for another one: of a higher priority, or of a queue that takes back what it lent."""
    SHRUNK = "Shrunk"
    """The pod has less compute than its share, down to its floor, because another pod needs it."""
    RESIZED = "Resized"
    """The pod's share is the one that it asked for."""
    RESIZE_WAITS = "ResizeWaits"
    """The pod asks for more than its GPUs have free."""
    BAD_RESIZE = "BadResize"
    """The requested share is invalid, or a quota forbids it."""
    NO_GRANT = AttachReason.NO_GRANT
    BAD_GRANT = AttachReason.BAD_GRANT
    OTHER_POD = AttachReason.OTHER_POD
    OTHER_NODE = AttachReason.OTHER_NODE
    NO_SHARE = AttachReason.NO_SHARE
    UNKNOWN_GPU = AttachReason.UNKNOWN_GPU
    UNFIT_GPU = AttachReason.UNFIT_GPU
    OVERCOMMIT = AttachReason.OVERCOMMIT
    DRIVER_NOT_READY = AttachReason.DRIVER_NOT_READY
    CAPABILITY_NOT_SHAREABLE = "CapabilityNotShareable"
    """The container asks for a driver capability that a share does not have, such as video."""
    GPU_UNHEALTHY = "GPUUnhealthy"
    """A GPU of the node, which the running pod may hold, became unhealthy."""
    GPUS_HEALTHY = "GPUsHealthy"
    """All GPUs of the node are healthy again."""
    AGENT_AWAY = "GPUAgentAway"
    """The node's agent does not answer."""
    AGENT_READY = "GPUAgentReady"
    """The node's agent answers again."""
    STRANDED = "PodStranded"
    """The kubelet will never start the pod, so the agent marked it as failed and its share is free."""
    OUTSIDE_SHARE = "OutsideShare"
    """The audit found processes of the pod outside its share."""
    IDLE = "GPUIdle"
    """The pod holds a share and has not used it for the time that its namespace or queue names."""
    IDLE_SHRUNK = "GPUShareShrunk"
    """So its share was shrunk, as its namespace or queue asks."""
    LAYOUT_SWITCHED = "LayoutSwitched"
    """The layout of a calendar's nodes is another one now."""
    LAYOUT_FAILED = "LayoutSwitchFailed"
    """A switch was rolled back or is held."""
    SERVICE_SCALED = "ServiceScaled"
    """The replicas of a GpuService's target were changed."""
    SERVICE_BLOCKED = "ServiceBlocked"
    """A GpuService cannot do what the load or an update needs."""
    UNINSTALLING = "MilligpuUninstalling"
    """milligpu is being uninstalled while the pod holds a GPU, or left files on the node."""


class AmountUnit(StrEnum):
    """The unit of the two numbers of a refusal."""

    COMPUTE = "milli-GPU"
    MEMORY = "MiB"
    GPUS = "GPUs"
    CPU = "milli-CPU"


_UNITS = {
    Reason.INSUFFICIENT_CORE: AmountUnit.COMPUTE,
    Reason.INSUFFICIENT_MEMORY: AmountUnit.MEMORY,
    Reason.INSUFFICIENT_GPUS: AmountUnit.GPUS,
    Reason.MEMORY_SIZE: AmountUnit.MEMORY,
    Reason.NODE_CPU: AmountUnit.CPU,
    Reason.NODE_MEMORY: AmountUnit.MEMORY,
}


def _show_amount(amount: int, unit: AmountUnit) -> str:
    """An amount as people write it: "0.5", "4Gi", "2" or "500m"."""
    match unit:
        case AmountUnit.COMPUTE:
            return show_milli(amount)
        case AmountUnit.MEMORY:
            return show_mib(amount)
        case AmountUnit.GPUS:
            return str(amount)
        case AmountUnit.CPU:
            return f"{amount}m"


_UNIT_WORDS = {AmountUnit.COMPUTE: " GPU", AmountUnit.MEMORY: "", AmountUnit.GPUS: " GPUs", AmountUnit.CPU: " CPU"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one GPU or node does not fit."""

    reason: Reason
    node: str
    gpu: str = ""
    wanted: int = 0
    best: int = 0
    unit: AmountUnit | None = None
    """The unit of the two numbers; None where the reason alone tells it."""
    message: str = ""
    """What else a person needs to know, such as why an admin cordoned the GPU."""

    @property
    def where(self) -> str:
        """The GPU, or the node if no single GPU is to blame."""
        return "/".join(part for part in (self.node, short_uuid(self.gpu)) if part)

    @property
    def amounts(self) -> str:
        """What is there of what is wanted, such as "0.4 of 0.5 GPU"; empty for a reason without numbers."""
        unit = self.unit or _UNITS.get(self.reason)
        if not self.wanted or unit is None:
            return ""
        return f"{_show_amount(self.best, unit)} of {_show_amount(self.wanted, unit)}{_UNIT_WORDS[unit]}"


class ViolationKind(StrEnum):
    """How a process or tenant uses a GPU beyond its grant."""

    UNKNOWN_PROCESS = "unknown-process"
    """A process on a GPU that belongs to no tenant."""
    BYPASS = "bypass"
    """A tenant's process reached the driver without the limits library: the usage page does not have it."""
    OVER_MEMORY = "over-memory"
    """The driver counts more memory than the memory limit."""
    WRONG_USAGE_PAGE = "wrong-usage-page"
    """The driver counts more memory than the tenant's usage page."""
    OVER_COMPUTE = "over-compute"
    """The driver counts more GPU time than the limit."""
