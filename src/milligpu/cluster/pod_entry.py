"""What the scheduler decided about one pod, and how far the pod has come."""

from dataclasses import dataclass
from enum import Enum

from milligpu.cluster.observed import SchedulingSpec, UnreadableGrant
from milligpu.model.grant import Grant

FOREVER = float("inf")


class PodStage(Enum):
    """How far a pod has come."""

    WAITING = "waiting"
    """The pod holds nothing."""
    NOMINATED = "nominated"
    """A place is kept for the pod, and kube-scheduler has yet to ask about it."""
    RESERVED = "reserved"
    """The place was sent to kube-scheduler as the answer to filter."""
    BINDING = "binding"
    """The Binding is being written."""
    BIND_UNKNOWN = "doubtful"
    """The Binding may or may not have been written."""
    BOUND = "bound"
    """The pod is on its node."""


@dataclass(slots=True)
class PodEntry:
    """One pod in the cluster state."""

    spec: SchedulingSpec
    since: float = 0.0
    """When the pod was first seen, by the watch or by kube-scheduler."""
    number: int = 0
    """Pods are numbered in the order in which they were first seen."""
    stage: PodStage = PodStage.WAITING
    grant: Grant | None = None
    unreadable: UnreadableGrant | None = None
    """In place of the grant: the pod counts as holding all of each GPU that it may name."""
    node: str = ""
    until: float = FOREVER
    """When a reservation ends."""
    doubt_until: float = -FOREVER
    """Until when a bind without an answer may still be carried out."""
    seen: bool = False
    """Whether the watch has shown the pod; kube-scheduler may ask about it before."""
    gated: bool = False
    queued: bool = False
    """Whether the gate of its queue is the pod's only scheduling gate."""
    created: float = 0.0
    """When the pod was created, in seconds since 1970."""
    started: float = FOREVER
    """When the pod started to run, in seconds since 1970."""
    ends: float = FOREVER
    """When a running pod ends at the latest, in seconds since 1970."""
    leaving: bool = False
    """Whether the pod is bound and being deleted."""
    resize: str = ""
    """The annotation by which the pod asks for another share."""
    service: str = ""
    """The GpuService that sets the pod's share, as its annotation says."""
    next_grant: Grant | None = None
    """The next generation of the grant while it is being written; on each GPU the larger of the two counts."""
    nominated: str = ""
    """The node in the pod's status."""
    nominated_here: str = ""
    """The node that this instance wrote there."""
    cleared_here: bool = False
    """Whether this instance cleared the nomination, and the watch has not shown it yet."""
    stale_since: float = FOREVER
    """Since when nothing has been kept for the nomination in the status."""
    other_reason: bool = False
    """Whether kube-scheduler refused the pod for a reason other than a GPU."""
    given_up: bool = False
    """Whether kube-scheduler said that it found no node for the pod."""
    nudged: str = ""
    """The node that was written as a nomination only to make kube-scheduler look at all nodes again."""
    hold_off_s: float = 0.0
    """How long the pod is not nominated after a nomination that kube-scheduler did not use."""
    held_off_at: float = -FOREVER
    held_off_version: int = -1
    """The state's `capacity_version` then."""
    answered_at: float = FOREVER
    """When filter first answered with a place that was not followed by a bind."""
    refused_by_filter: bool = False
    """Whether filter found no room for the pod: kube-scheduler will not ask again by itself."""
