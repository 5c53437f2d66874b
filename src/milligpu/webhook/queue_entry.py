"""What admission writes into pods and templates of queues: the queue, its gate, and who created them.

A controller of the cluster creates pods from a template that a user created, so such a pod keeps the user of its
template. Everybody else writes their own name only: an admission policy refuses any other.
"""

from collections.abc import Mapping
from typing import Any, cast

from milligpu.dialects.pod import Json, annotations, section
from milligpu.dialects.templates import PATHS
from milligpu.manifests.webhook_configuration import CONTROLLERS
from milligpu.model import names
from milligpu.model.gpu_queue import GpuQueues

# Kueue gates pods itself, by this label.
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def enqueue(pod: dict[str, Any], namespace: str, user: str, queues: GpuQueues) -> None:
    """Put a new pod that requests GPUs into its queue, if it has one. Raises `BadRequest` for a wrong queue.

    A pod of a group gets the gate also without a queue: it waits for the others.
    """
    metadata = cast("dict[str, Any]", pod["metadata"])
    labels: dict[str, str] = metadata.get("labels") or {}
    named = labels.get(names.QUEUE)
    if named is None and KUEUE_LABEL in labels:
        return
    queue = queues.queue_of(namespace, named)
    if queue is None and names.GROUP not in annotations(pod):
        return
    if queue is not None:
        metadata["labels"] = {**labels, names.QUEUE: queue}
        _write_user(metadata, user)
    spec = cast("dict[str, Any]", pod["spec"])
    gates: list[dict[str, str]] = spec.get("schedulingGates") or []
    if {"name": names.QUEUE} not in gates:
        spec["schedulingGates"] = [*gates, {"name": names.QUEUE}]


def check_template(pod: Json, namespace: str, queues: GpuQueues) -> None:
    """Refuse a template whose pods would be refused for their queue."""
    labels = section(section(pod, "metadata"), "labels")
    named = labels.get(names.QUEUE)
    if named is not None:
        queues.queue_of(namespace, str(named))


def sign_template(kind: str, found: dict[str, Any], before: Json, user: str) -> None:
    """Write into a new template who created it. An existing one keeps what it says: else its pods would restart."""
    template = _template(kind, found)
    if template is None:
        return
    metadata = cast("dict[str, Any]", template.setdefault("metadata", {}))
    if not before:
        _write_user(metadata, user)
        return
    known = _template(kind, before)
    signed = None if known is None else annotations(known).get(names.USER)
    if signed is not None:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), names.USER: signed}


def _write_user(metadata: dict[str, Any], user: str) -> None:
    notes: dict[str, str] = metadata.get("annotations") or {}
    if user and not user.startswith(CONTROLLERS):
        metadata["annotations"] = {**notes, names.USER: user}


def _template(kind: str, found: Json) -> dict[str, Any] | None:
    inner: object = found if PATHS[kind] else None
    for key in PATHS[kind]:
        inner = cast("Mapping[str, object]", inner).get(key) if isinstance(inner, Mapping) else None
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else None
