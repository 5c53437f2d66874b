"""Custom resource definitions."""

from typing import Any

from milligpu.model.gpu_class import NAME_MAX
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
