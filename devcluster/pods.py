"""Helpers for what tests often do with pods."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.images import BASE
from devcluster.wait import until

RUN_DEADLINE_S = 60.0


def pod(
    name: str,
    command: Sequence[str] = ("sleep", "infinity"),
    *,
    resources: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    image: str = BASE.reference,
    **spec: Any,
) -> Pod:
    """Build a pod with one container; `spec` takes any other field of the pod's spec."""
    container = Container(
        name="main",
        image=image,
        imagePullPolicy="Never",
        command=list(command),
        resources=ResourceRequirements(limits=dict(resources)) if resources else None,
    )
    settings: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
    return Pod(
        metadata=ObjectMeta(name=name, annotations=dict(annotations or {})),
        spec=PodSpec(containers=[container], **settings),
    )


def phase(pod: Pod) -> str:
    return (pod.status.phase if pod.status else None) or ""


def node_name(pod: Pod) -> str:
    return (pod.spec.nodeName if pod.spec else None) or ""


def wait_for_phase(
    cluster: Cluster, namespace: str, name: str, *phases: str, deadline_s: float = RUN_DEADLINE_S
) -> Pod:
    """Wait until the pod is in one of the phases; raise if it ends in another one."""

    def probe() -> Pod | None:
        found = cluster.client.get(Pod, name, namespace=namespace)
        if phase(found) in phases:
            return found
        if phase(found) in ("Succeeded", "Failed"):
            ended = f"pod {name} ended as {phase(found)}, not {' or '.join(phases)}"
            raise DevclusterError(f"{ended}\n{cluster.last_state(namespace)}")
        return None

    return until(
        f"pod {name} to be {' or '.join(phases)}",
        probe,
        deadline_s,
        last_state=lambda: cluster.last_state(namespace),
    )


def why_unscheduled(pod: Pod) -> str:
    """The scheduler's message about a pod that it could not place; empty if there is none."""
    for condition in (pod.status.conditions if pod.status else None) or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or ""
    return ""
