"""Custom resource definitions."""

from typing import Any

from milligpu.model.gpu_class import NAME_MAX
from milligpu.model.gpu_queue import MINIMUM_RUNTIME_MAX_S, QUOTA_MILLI_MAX, WEIGHT_MAX, QueueOrder
from milligpu.model.names import GROUP_VERSION
from milligpu.model.requirements import FORMS, GRAMMAR, TEXT_MAX

GROUP, VERSION = GROUP_VERSION.split("/")


def class_crd() -> dict[str, Any]:
    """`GpuClass`: requirements with a name, and the class that is tried when it has no GPU free."""
    requirements = {
        "type": "string",
        "minLength": 1,
        "maxLength": TEXT_MAX,
        "description": "What a GPU of this class is like, such as: memory>=16Gi, model in (V100, A100), ecc",
        "x-kubernetes-validations": [
            {
                "rule": f"self.matches({_quoted(GRAMMAR)})",
                "message": f"terms with commas: {', '.join(FORMS.values())}",
            }
        ],
    }
    fallback = {
        "type": "string",
        "minLength": 1,
        "maxLength": NAME_MAX,
        "description": "The class that is tried when no GPU of this one is free.",
    }
    spec = {
        "type": "object",
        "required": ["requirements"],
        "properties": {"requirements": requirements, "fallback": fallback},
    }
    rules = [
        {
            "rule": f"size(self.metadata.name) <= {NAME_MAX}",
            "message": f"metadata.name: at most {NAME_MAX} characters, because gpu-NAME is a resource",
        },
        {
            "rule": "!has(self.spec.fallback) || self.spec.fallback != self.metadata.name",
            "message": "spec.fallback: must be another class",
        },
    ]
    columns = [
        {"name": "Requirements", "type": "string", "jsonPath": ".spec.requirements"},
        {"name": "Fallback", "type": "string", "jsonPath": ".spec.fallback"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": spec,
            "status": {"type": "object", "properties": {"conditions": CONDITIONS}},
        },
        "x-kubernetes-validations": rules,
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    kinds = {"kind": "GpuClass", "listKind": "GpuClassList", "plural": "gpuclasses", "singular": "gpuclass"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gpuclasses.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": kinds, "versions": [version]},
    }


CONDITIONS: dict[str, Any] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    },
}


def _quoted(pattern: str) -> str:
    """A pattern as a raw string of CEL."""
    assert "'" not in pattern
    return f"r'{pattern}'"


def sharepod_crd() -> dict[str, Any]:
    """Return KubeShare 1's SharePod, for clusters that do not have it: a pod's spec, and the pod's status."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    columns = [
        {"name": "Phase", "type": "string", "jsonPath": ".status.podStatus.phase"},
        {"name": "GPU", "type": "string", "jsonPath": ".status.boundDeviceID"},
        {"name": "Message", "type": "string", "jsonPath": ".status.podStatus.message"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    version: dict[str, Any] = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    kinds = {"kind": "SharePod", "listKind": "SharePodList", "plural": "sharepods", "singular": "sharepod"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "sharepods.kubeshare.nthu"},
        "spec": {
            "group": "kubeshare.nthu",
            "scope": "Namespaced",
            "names": {**kinds, "shortNames": ["shp"]},
            "versions": [version],
        },
    }


def queue_crd() -> dict[str, Any]:
    """`GpuQueue`: what the pods of a team may have together, and in which order they get it."""
    name = {"type": "string", "minLength": 1, "maxLength": 63}
    spec: dict[str, Any] = {
        "type": "object",
        "properties": {
            "parent": {**name, "description": "The queue above this one."},
            "guarantee": _quota("What its pods get before any queue gets more than its own guarantee."),
            "ceiling": _quota("What its pods never exceed."),
            "weight": {
                "type": "integer",
                "minimum": 1,
                "maximum": WEIGHT_MAX,
                "default": 1,
                "description": "Its part of what no guarantee covers, relative to its siblings.",
            },
            "order": {
                "type": "string",
                "enum": [str(each) for each in QueueOrder],
                "default": str(QueueOrder.FAIR),
                "description": "fifo: who came first. fair: the user who had least of late.",
            },
            "lend": {
                "type": "boolean",
                "default": True,
                "description": "Whether others may use what is idle of the guarantee.",
            },
            "minimumRuntimeSeconds": {
                "type": "integer",
                "minimum": 0,
                "maximum": MINIMUM_RUNTIME_MAX_S,
                "description": "For this long after its start no pod of the queue is evicted for another pod.",
            },
            "namespaces": {
                "type": "array",
                "maxItems": 1000,
                "items": name,
                "x-kubernetes-list-type": "set",
                "description": "The namespaces whose pods wait in this queue; without any, pods name it by label.",
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.guarantee) || !has(self.ceiling) || !has(self.ceiling.milli) || "
                "!has(self.guarantee.milli) || self.guarantee.milli <= self.ceiling.milli",
                "message": "guarantee.milli: at most ceiling.milli",
                "fieldPath": ".guarantee",
            }
        ],
    }
    user = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "milli": {"type": "number", "description": "Milli-GPU of late, on average; half-life: a week."},
            "at": {"type": "number", "description": "When that was right, in seconds since 1970."},
        },
    }
    whole = {"type": "integer", "format": "int64", "minimum": 0}
    status = {
        "type": "object",
        "properties": {
            "conditions": CONDITIONS,
            "heldMilli": whole,
            "heldMib": whole,
            "waiting": whole,
            "users": {
                "type": "array",
                "items": user,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    }
    columns = [
        {"name": "Guarantee", "type": "integer", "jsonPath": ".spec.guarantee.milli"},
        {"name": "Ceiling", "type": "integer", "jsonPath": ".spec.ceiling.milli"},
        {"name": "Held", "type": "integer", "jsonPath": ".status.heldMilli"},
        {"name": "Waiting", "type": "integer", "jsonPath": ".status.waiting"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    rules = [
        {
            "rule": "size(self.metadata.name) <= 63",
            "message": "metadata.name: at most 63 characters, as it is a label",
        },
        {
            "rule": "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "message": "spec.parent: must be another queue",
        },
    ]
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": rules,
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    kinds = {"kind": "GpuQueue", "listKind": "GpuQueueList", "plural": "gpuqueues", "singular": "gpuqueue"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gpuqueues.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": kinds, "versions": [version]},
    }


def _quota(description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": {
            "milli": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "maximum": QUOTA_MILLI_MAX,
                "description": "Milli-GPU: 1000 are one GPU.",
            },
            "memory": {
                "type": "string",
                "pattern": "^[0-9]+(Mi|Gi|Ti)$",
                "maxLength": 16,
                "description": "GPU memory, such as 160Gi.",
            },
        },
    }
