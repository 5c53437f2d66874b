"""Pods and nodes as the API server shows them, reduced to what scheduling needs."""

from dataclasses import dataclass
from math import inf

from milligpu.cluster.node_conditions import NodeCondition
from milligpu.cluster.node_constraints import NodeConstraints, NodeFacts
from milligpu.cluster.preferences import NO_PREFERENCES, Preferences
from milligpu.model.gpu import Node
from milligpu.model.grant import Grant
from milligpu.model.group import GroupKey, PodGroup
from milligpu.model.request import PodRef, PodRequest
from milligpu.model.units import Milli
from milligpu.wire.kubernetes import NodeImage


@dataclass(frozen=True, slots=True)
class SchedulingSpec:
    """What a pod asks for; it stays the same from the pod's creation to its end."""

    pod: PodRef
    request: PodRequest | None
    """None if the request is invalid; `mistake` then says why."""
    mistake: str
    constraints: NodeConstraints
    scheduler: str
    priority: int
    shape: int
    """Equal numbers fit in the same places: if one such pod fits nowhere, none does."""
    preferences: Preferences = NO_PREFERENCES
    queue: str = ""
    """The queue in which the pod waits; empty for a pod of no queue."""
    user: str = ""
    """Who created the pod; empty where admission did not write it."""
    time_limit_s: float = inf
    """How long the pod runs at most (`activeDeadlineSeconds`)."""
    preempts: bool = True
    """Whether pods of lower priority may be evicted for it (`preemptionPolicy`)."""

    @property
    def is_remote(self) -> bool:
        """Whether its GPUs are on a GPU server, and any node will do for the pod."""
        return self.request is not None and self.request.remote

    @property
    def group(self) -> PodGroup | None:
        """The pods that the pod starts together with."""
        return None if self.request is None else self.request.group

    @property
    def group_key(self) -> GroupKey | None:
        """The namespace and the name of its group; None for a pod that starts alone."""
        return None if self.group is None else (self.pod.namespace, self.group.name)

    @property
    def takes_turns(self) -> bool:
        """Whether the pod waits for its turn: in a queue, or for the other pods of its group."""
        return bool(self.queue) or self.group is not None

    @property
    def floor(self) -> Milli | None:
        """How far its shares may be shrunk for other pods."""
        return None if self.request is None else self.request.floor

    @property
    def wants_gpu(self) -> bool:
        """Whether the scheduler places the pod; an invalid request counts, so that it is refused."""
        return self.request is None or self.request.wants_gpu


@dataclass(frozen=True, slots=True)
class UnreadableGrant:
    """A bound pod's grant that cannot be read, as when a newer scheduler wrote it: its size is unknown."""

    named: tuple[str, ...]
    """The GPUs that are named in it."""
    problem: str


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as the API server shows it now."""

    spec: SchedulingSpec
    node: str
    grant: Grant | None
    ended: bool
    gated: bool
    leaving: bool
    nominated: str
    unreadable: UnreadableGrant | None = None
    """In place of the grant, when there is one that this version cannot read."""
    other_reason: bool = False
    """Whether kube-scheduler refused the pod for a reason other than a GPU, such as a missing ResourceClaim."""
    given_up: bool = False
    """Whether kube-scheduler found no node for the pod, for whatever reason."""
    resize: str = ""
    """The annotation by which a running pod asks for another share."""
    service: str = ""
    """The GpuService that set the share of a running pod."""
    queued: bool = False
    """Whether the gate of its queue is the only scheduling gate that the pod has."""
    created: float = 0.0
    """When the pod was created, in seconds since 1970."""
    started: float = inf
    """When the pod started to run, in seconds since 1970."""
    ends: float = inf
    """When a running pod ends at the latest, in seconds since 1970."""
    succeeded: float | None = None
    """When a pod of a group succeeded, in seconds since 1970."""

    @property
    def uid(self) -> str:
        return self.spec.pod.uid


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node: its GPUs, CPU and memory, and the facts that pods' conditions are about."""

    node: Node
    facts: NodeFacts
    problem: str = ""
    """Why its inventory could not be read."""
    uid: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    """What the Node object says about its agent and GPUs."""
    wanted: tuple[NodeCondition, ...] = ()
    """The conditions that it should have."""
    images: tuple[NodeImage, ...] = ()
    """The large images that it has."""
