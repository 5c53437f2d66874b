"""`GpuService`: an inference service whose shares and replicas follow its load."""

from typing import Any

import msgspec

from milligpu.manifests.crds import CONDITIONS, GROUP, VERSION
from milligpu.model.gpu_service import NAME_MAX, PORT_MAX, PRESETS, REPLICAS_MAX, TARGET_MAX, ScaleKind
from milligpu.model.units import WHOLE
from milligpu.wire.gpu_service import DURATION, KIND, METRIC, PATH

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "format": "int64", "minimum": 0}
_NUMBER = {"type": "number"}


def service_crd() -> dict[str, Any]:
    """Return the definition, as plain data without shared parts, which YAML would write as references."""
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": _spec(), "status": _status()},
        "x-kubernetes-validations": [
            _rule(
                f"size(self.metadata.name) <= {NAME_MAX}",
                f"metadata.name: at most {NAME_MAX} characters",
            )
        ],
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": schema},
    }
    kinds = {"kind": KIND, "listKind": f"{KIND}List", "plural": "gpuservices", "singular": "gpuservice"}
    found = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gpuservices.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**kinds, "shortNames": ["gsvc"]},
            "versions": [version],
        },
    }
    return msgspec.json.decode(msgspec.json.encode(found))


def _spec() -> dict[str, Any]:
    target = {
        "type": "object",
        "required": ["kind", "name"],
        "properties": {
            "apiVersion": {"type": "string", "enum": ["apps/v1"]},
            "kind": {"type": "string", "enum": list(ScaleKind)},
            "name": {"type": "string", "minLength": 1, "maxLength": 253},
        },
        "description": "Whose pods the service has, in the same namespace.",
    }
    load = {
        "type": "object",
        "properties": {
            "preset": {
                "type": "string",
                "enum": list(PRESETS),
                "description": "The engine: its port, path and metrics.",
            },
            "port": {**_whole(1, PORT_MAX), "description": "A port that the pods declare."},
            "path": {
                "type": "string",
                "maxLength": 200,
                "pattern": f"^{PATH}$",
                "description": "Such as /metrics.",
            },
            "requests": {**_metric(), "description": "Counter of requests."},
            "running": {**_metric(), "description": "Gauge of the requests in work."},
            "waiting": {**_metric(), "description": "Gauge of the requests in the pods' queues."},
        },
        "x-kubernetes-validations": [
            _rule("has(self.preset) || has(self.port)", "a preset, or port, path and the names of metrics"),
            _rule(
                "!has(self.preset) || !(has(self.path) || has(self.requests) || has(self.running) || "
                "has(self.waiting))",
                "preset: with it only port can be set",
            ),
        ],
    }
    wanted = {
        "type": "object",
        "properties": {
            "requests": {**_whole(1, TARGET_MAX), "description": "A second, on a whole GPU."},
            "running": {**_whole(1, TARGET_MAX), "description": "At a time, on a whole GPU."},
        },
        "x-kubernetes-validations": [
            _rule("!(has(self.requests) && has(self.running))", "one of requests and running, or neither")
        ],
        "description": "What a GPU is meant to serve; if left out, GPU time per request is learned.",
    }
    share = {
        "type": "object",
        "required": ["max"],
        "properties": {
            "min": {
                **_whole(1, WHOLE),
                "description": "The least that a pod is guaranteed (default: its template).",
            },
            "max": {**_whole(1, WHOLE), "description": "The most, and the pods' limit, in milli-GPU."},
        },
        "x-kubernetes-validations": [_rule("!has(self.min) || self.min <= self.max", "min: at most max")],
    }
    replicas = {
        "type": "object",
        "required": ["max"],
        "properties": {"min": _whole(1, REPLICAS_MAX), "max": _whole(1, REPLICAS_MAX)},
        "x-kubernetes-validations": [_rule("!has(self.min) || self.min <= self.max", "min: at most max")],
        "description": "How many pods; if left out, something else decides.",
    }
    update = {
        "type": "object",
        "properties": {
            "deadline": {
                "type": "string",
                "maxLength": 7,
                "pattern": f"^{DURATION}$",
                "description": "By when a new pod has to be Ready, such as 10m (default).",
            }
        },
    }
    return {
        "type": "object",
        "required": ["scaleTargetRef", "load", "share"],
        "properties": {
            "scaleTargetRef": target,
            "load": load,
            "target": wanted,
            "share": share,
            "replicas": replicas,
            "update": update,
            "paused": {"type": "boolean", "description": "Keep shares and replicas (milligpu service pause)."},
        },
    }


def _status() -> dict[str, Any]:
    decision = {"type": "object", "required": ["at", "message"], "properties": {"at": _TEXT, "message": _TEXT}}
    return {
        "type": "object",
        "properties": {
            "share": _COUNT,
            "granted": _COUNT,
            "replicas": _COUNT,
            "ready": _COUNT,
            "requests": _NUMBER,
            "running": _NUMBER,
            "waiting": _NUMBER,
            "needed": _COUNT,
            "gpuSecondsPerRequest": _NUMBER,
            "startSeconds": _NUMBER,
            "starts": _COUNT,
            "decisions": {"type": "array", "items": decision},
            "conditions": CONDITIONS,
        },
    }


def _columns() -> list[dict[str, Any]]:
    def reason(condition: str) -> str:
        return f".status.conditions[?(@.type=='{condition}')].reason"

    return [
        {"name": "Target", "type": "string", "jsonPath": ".spec.scaleTargetRef.name"},
        {"name": "Share", "type": "integer", "jsonPath": ".status.share"},
        {"name": "Max", "type": "integer", "jsonPath": ".spec.share.max"},
        {"name": "Pods", "type": "integer", "jsonPath": ".status.ready"},
        {"name": "Needed", "type": "integer", "jsonPath": ".status.needed"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Scaled", "type": "string", "jsonPath": reason("Scaled")},
        {"name": "Updated", "type": "string", "jsonPath": reason("Updated"), "priority": 1},
        {"name": "Metrics", "type": "string", "jsonPath": reason("MetricsFresh"), "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _rule(rule: str, message: str) -> dict[str, str]:
    return {"rule": rule, "message": message}


def _whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _metric() -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 200, "pattern": f"^{METRIC}$"}
