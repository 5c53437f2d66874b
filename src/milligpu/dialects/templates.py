"""Where the pod is in each kind of object that makes pods."""

from collections.abc import Mapping
from typing import Any, cast

from milligpu.dialects import pod as pods
from milligpu.model.errors import BadRequest

PATHS: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    "SharePod": (),
    "PodTemplate": ("template",),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


def pod_of(kind: str, found: pods.Json) -> dict[str, Any]:
    """The pod that an object makes; a template has no name of its own, so it has its owner's."""
    pod, path = found, ""
    for key in PATHS[kind]:
        path = f"{path}.{key}" if path else key
        inner = pod.get(key)
        if not isinstance(inner, Mapping):
            raise BadRequest(path, inner, f"the pods' template of a {kind}")
        pod = cast("pods.Json", inner)
    owner, own = pods.section(found, "metadata"), pods.section(pod, "metadata")
    name = own.get("name") or owner.get("name") or owner.get("generateName")
    return {**pod, "metadata": {**own, "name": name, "namespace": owner.get("namespace")}}
