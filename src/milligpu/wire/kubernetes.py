"""The few fields of Kubernetes' objects that are read; all others are skipped while decoding."""

from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

_SPEC_NONE = msgspec.Raw(b"{}")
# Smaller images never count in scheduling: kube-scheduler gives no points to less than 23 MiB.
_IMAGE_BYTES_MIN = 23 * 1024 * 1024
ENDED_PHASES = frozenset({"Succeeded", "Failed"})
"""The phases of a pod that has ended."""


class OwnerReference(msgspec.Struct):
    """One of `metadata.ownerReferences`."""

    uid: str = ""
    controller: bool = False


class ObjectMeta(msgspec.Struct):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None
    ownerReferences: list[OwnerReference] | None = None


class KubeCondition(msgspec.Struct):
    """One entry of `status.conditions`."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    lastTransitionTime: str | None = None
    observedGeneration: int | msgspec.UnsetType = msgspec.UNSET


class ContainerStatus(msgspec.Struct):
    """One of `status.containerStatuses`."""

    state: dict[str, Any] | None = None
    lastState: dict[str, Any] | None = None

    @property
    def has_run(self) -> bool:
        """Whether the container runs or has ended."""
        return any(key in found for found in (self.state, self.lastState) if found for key in _RAN)


_RAN = ("running", "terminated")


class PodStatus(msgspec.Struct):
    """`status` of a pod."""

    phase: str = ""
    startTime: str = ""
    nominatedNodeName: str = ""
    conditions: list[KubeCondition] | None = None
    containerStatuses: list[ContainerStatus] | None = None


class _Phase(msgspec.Struct):
    phase: str = ""


class KubePod(msgspec.Struct, dict=True):
    """A pod. Its spec is left as it came, because most events do not change it; its status, until it is read."""

    metadata: ObjectMeta
    spec: msgspec.Raw = _SPEC_NONE
    raw_status: msgspec.Raw = msgspec.field(name="status", default=_SPEC_NONE)

    @cached_property
    def status(self) -> PodStatus:
        """The status. Raises `msgspec.DecodeError` for what the API server would not accept."""
        return _status_decoder.decode(self.raw_status)

    @property
    def ended(self) -> bool:
        """Whether all of its containers have ended for good."""
        return _phase_decoder.decode(self.raw_status).phase in ENDED_PHASES

    def as_dict(self) -> dict[str, Any]:
        """The pod as dialects read it: what its author wrote, without the status."""
        return {"metadata": msgspec.to_builtins(self.metadata), "spec": msgspec.json.decode(self.spec)}


_status_decoder = msgspec.json.Decoder(PodStatus)
_phase_decoder = msgspec.json.Decoder(_Phase)


class Taint(msgspec.Struct, frozen=True):
    """One of `spec.taints` of a node."""

    key: str
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct):
    """`spec` of a node."""

    taints: list[Taint] | None = None
    unschedulable: bool = False


class NodeAddress(msgspec.Struct):
    """One of `status.addresses` of a node."""

    type: str
    address: str


class NodeImage(msgspec.Struct, frozen=True):
    """One of `status.images` of a node."""

    names: tuple[str, ...] | None = None
    sizeBytes: int = 0


class NodeStatus(msgspec.Struct):
    """`status` of a node; of its images only the large ones are kept."""

    allocatable: dict[str, str] | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[KubeCondition] | None = None
    images: tuple[NodeImage, ...] | None = None

    def __post_init__(self) -> None:
        """Drop small images: a node may report fifty, and thousands of nodes are remembered."""
        if self.images:
            self.images = tuple(each for each in self.images if each.sizeBytes >= _IMAGE_BYTES_MIN)


class KubeNode(msgspec.Struct):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class GpuClassSpec(msgspec.Struct):
    """`spec` of a GpuClass."""

    requirements: str = ""
    fallback: str = ""


class GpuClassStatus(msgspec.Struct):
    """`status` of a GpuClass."""

    conditions: list[KubeCondition] | None = None


class KubeGpuClass(msgspec.Struct):
    """A GpuClass."""

    metadata: ObjectMeta
    spec: GpuClassSpec = msgspec.field(default_factory=GpuClassSpec)
    status: GpuClassStatus = msgspec.field(default_factory=GpuClassStatus)


class QueueUser(msgspec.Struct):
    """One of `status.users` of a GpuQueue."""

    name: str
    milli: float = 0.0
    """Milli-GPU on average, weighted by how long ago they were held."""
    at: float = 0.0
    """When that was right, in seconds since 1970."""


class GpuQueueStatus(msgspec.Struct):
    """`status` of a GpuQueue."""

    conditions: list[KubeCondition] | None = None
    users: list[QueueUser] | None = None
    heldMilli: int = 0
    heldMib: int = 0
    waiting: int = 0


class KubeGpuQueue(msgspec.Struct):
    """A GpuQueue; its spec is read by `wire/gpu_queue.py`."""

    metadata: ObjectMeta
    spec: msgspec.Raw = _SPEC_NONE
    status: GpuQueueStatus = msgspec.field(default_factory=GpuQueueStatus)


class GpuServerSpec(msgspec.Struct):
    """`spec` of a GpuServer."""

    address: str = ""
    authority: str = ""
    """The certificate of its pool's CA."""
    cordoned: bool = False


class GpuServerStatus(msgspec.Struct):
    """`status` of a GpuServer, written by the server itself."""

    inventory: msgspec.Raw = msgspec.Raw(b"null")
    """Its GPUs, as `wire/inventory.py` reads them."""
    gpus: int = 0
    models: str = ""
    heartbeat: str = ""
    """When the server wrote its status last."""
    conditions: list[KubeCondition] | None = None


class KubeGpuServer(msgspec.Struct):
    """A GpuServer."""

    metadata: ObjectMeta
    spec: GpuServerSpec = msgspec.field(default_factory=GpuServerSpec)
    status: GpuServerStatus = msgspec.field(default_factory=GpuServerStatus)


class RawObject(msgspec.Struct):
    """Any object whose parts are passed on as they came."""

    metadata: ObjectMeta
    spec: msgspec.Raw = _SPEC_NONE
    status: msgspec.Raw = _SPEC_NONE


Thing = TypeVar("Thing", KubePod, KubeNode, KubeGpuClass, KubeGpuQueue, KubeGpuServer, RawObject)


class ListMeta(msgspec.Struct):
    """`metadata` of a list."""

    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ObjectList(msgspec.Struct, Generic[Thing]):
    """A page of a list."""

    metadata: ListMeta
    items: list[Thing]


_pod_decoder = msgspec.json.Decoder(KubePod)


def decode_pod(text: bytes) -> KubePod:
    """Read one pod."""
    return _pod_decoder.decode(text)
