"""Where the pod template is in each kind of object that creates pods."""

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


def pod_of_template(kind: str, found: pods.Json) -> dict[str, Any]:
    """Return the pod that an object creates; a template has no name, so the pod has its owner's."""
    pod, path = found, ""
    for key in PATHS[kind]:
        path = f"{path}.{key}" if path else key
        inner = pod.get(key)
        if not isinstance(inner, Mapping):
            raise BadRequest(path, inner, f"the pod template of a {kind}")
        pod = cast("pods.Json", inner)
    owner, own = pods.section(found, "metadata"), pods.section(pod, "metadata")
    name = own.get("name") or owner.get("name") or owner.get("generateName")
    return {**pod, "metadata": {**own, "name": name, "namespace": owner.get("namespace")}}
