"""A pod in the model of kube-scheduler: as the API server shows it, and as an entry of the queue."""

from collections.abc import Callable
from dataclasses import dataclass

from milligpu.model import names
from testing.controlplane.objects import Document


@dataclass(slots=True)
class QueuedPod:
    """A pod in kube-scheduler's queue."""

    uid: str
    ready_at: float
    """When its backoff ends; infinite for a pod that was given up on."""
    given_up_at: float = 0.0
    refusals: int = 0
    """Attempts that found no node."""
    errors: int = 0
    """Attempts in a row that ended with an error: until its backoff ends the pod is not tried again."""
    by_extender: bool = False
    """Whether the extender refused some node when the pod was given up on."""
    by_totals: bool = False
    """Whether the totals of some node did not suffice then."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as kube-scheduler has seen it."""

    document: Document
    uid: str
    name: str
    node: str
    nominated: str
    priority: int
    milli: int
    memory: bool
    """Whether it asks for an amount of GPU memory."""
    leaving: bool
    gated: bool
    notes: dict[str, str]

    @classmethod
    def read(cls, pod: Document) -> "SeenPod":
        meta, spec = pod["metadata"], pod["spec"]
        limits = spec["containers"][0]["resources"]["limits"]
        return cls(
            pod,
            meta["uid"],
            meta["name"],
            spec.get("nodeName", ""),
            pod["status"].get("nominatedNodeName", ""),
            spec.get("priority", 0),
            int(limits[names.VGPU]),
            names.VGPU_MEMORY in limits,
            "deletionTimestamp" in meta,
            bool(spec.get("schedulingGates")),
            meta["annotations"],
        )


Concerns = Callable[[QueuedPod, SeenPod], bool]
"""Whether an event may make a pod schedulable."""
