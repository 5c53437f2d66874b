"""`GpuLayout` and `GpuCalendar`: what the API server itself checks of them. The webhook checks the rest."""

from typing import Any

import msgspec

from milligpu.manifests.crds import CONDITIONS, GROUP, VERSION
from milligpu.model.machines import PROFILE_PATTERN, MachineState
from milligpu.model.policy import SharePolicy
from milligpu.model.requirements import TEXT_MAX

_NAME_MAX = 63
_NAME = {"type": "string", "minLength": 1, "maxLength": _NAME_MAX, "pattern": "^[a-z0-9.-]+$"}
_TEXT: dict[str, Any] = {"type": "string"}
_TIME = {"type": "string", "format": "date-time"}
_LABELS: dict[str, Any] = {
    "type": "object",
    "maxProperties": 16,
    "additionalProperties": {"type": "string", "maxLength": 63},
}
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def layout_crds() -> list[dict[str, Any]]:
    """Return both definitions, as plain data without shared parts, which YAML would write as references."""
    return [msgspec.json.decode(msgspec.json.encode(each)) for each in (_layout(), _calendar())]


def _layout() -> dict[str, Any]:
    card = {
        "type": "object",
        "properties": {
            "nodeSelector": {
                **_LABELS,
                "description": "Labels of the nodes; all of the calendar if left out.",
            },
            "gpus": {
                "type": "string",
                "minLength": 1,
                "maxLength": TEXT_MAX,
                "description": "Requirements on the GPUs, such as: model=V100. The first entry that fits holds.",
            },
            "policy": {"type": "string", "enum": list(SharePolicy), "description": "Share policy of the GPUs."},
            "reserved": {
                "type": "integer",
                "minimum": 0,
                "maximum": 1000,
                "description": "Thousandths of each GPU that are reserved for sessions (milligpu run).",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 1000,
                "description": "The most compute that one tenant may use; a larger share is not cut.",
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "has(self.policy) || has(self.reserved) || has(self.limit)",
                "message": "one of policy, reserved and limit at least",
            }
        ],
    }
    spec = {
        "type": "object",
        "properties": {
            "cards": {"type": "array", "maxItems": 64, "items": card},
            "machines": {
                "type": "array",
                "maxItems": 128,
                "items": _machine(),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    }
    columns = [
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    status = {"type": "object", "properties": {"conditions": CONDITIONS}}
    return _definition("GpuLayout", "gpulayouts", spec=spec, status=status, columns=columns)


def _machine() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["name", "state"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 80, "description": "Name of the VM."},
            "node": {**_NAME, "description": "The node that runs in the VM; default: its name."},
            "state": {"type": "string", "enum": list(MachineState), "description": "What the VM is then."},
            "profile": {
                "type": "string",
                "maxLength": _NAME_MAX,
                "pattern": PROFILE_PATTERN,
                "description": "vGPU profile, such as grid_v100-4q; left out, it stays as it is.",
            },
            "pods": {
                "type": "string",
                "enum": ["keep", "drain"],
                "description": "keep suspends the pods that ask for it; drain evicts all. Default: keep.",
            },
        },
        "x-kubernetes-validations": [
            {
                "rule": "self.state != 'off' || (has(self.pods) && self.pods == 'drain')",
                "message": "pods: drain, because a VM that is off keeps no pods",
            }
        ],
    }


def _calendar() -> dict[str, Any]:
    clock = {"type": "string", "maxLength": 5, "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"}
    window = {
        "type": "object",
        "required": ["days", "from", "to", "layout"],
        "properties": {
            "days": {
                "type": "array",
                "minItems": 1,
                "maxItems": 7,
                "items": {
                    "type": "string",
                    "pattern": "^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)(-(Mon|Tue|Wed|Thu|Fri|Sat|Sun))?$",
                },
                "description": "On which the window begins, such as [Mon-Fri].",
            },
            "from": {**clock, "description": "When it begins, such as 07:00."},
            "to": {**clock, "description": "When it ends; at or before `from` is the next day."},
            "zone": {"type": "string", "maxLength": _NAME_MAX, "description": "Default: the calendar's zone."},
            "layout": _NAME,
        },
        "x-kubernetes-validations": [
            {"rule": "self.from != self.to", "message": "to: another time than from; whole days are 00:00 to 24:00"}
        ],
    }
    exception = {
        "type": "object",
        "required": ["dates", "layout"],
        "properties": {
            "name": {"type": "string", "maxLength": _NAME_MAX, "description": "Such as: exams."},
            "dates": {
                "type": "array",
                "minItems": 1,
                "maxItems": 366,
                "items": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", "maxLength": 10},
            },
            "from": {**clock, "description": "Default: 00:00."},
            "to": {**clock, "description": "Default: 24:00."},
            "layout": _NAME,
        },
    }
    override = {
        "type": "object",
        "required": ["layout"],
        "properties": {"layout": _NAME, "until": {**_TIME, "description": "Until it is removed if left out."}},
        "description": "A person's choice, which goes before the windows (milligpu layout switch, postpone).",
    }
    spec = {
        "type": "object",
        "required": ["default"],
        "properties": {
            "zone": {
                "type": "string",
                "minLength": 1,
                "maxLength": _NAME_MAX,
                "description": "Time zone, such as Europe/Berlin (default: UTC).",
            },
            "default": {**_NAME, "description": "The layout outside of all windows."},
            "nodeSelector": {**_LABELS, "description": "Labels of the nodes that it is for; all if left out."},
            "windows": {"type": "array", "maxItems": 64, "items": window},
            "exceptions": {"type": "array", "maxItems": 128, "items": exception},
            "paused": {"type": "boolean", "description": "Keep the present layout (milligpu layout pause)."},
            "override": override,
            "onFailure": {"type": "string", "enum": ["rollback", "hold"]},
            "deadlineSeconds": {"type": "integer", "minimum": 10, "maximum": 86400},
        },
    }
    columns = [
        {"name": "Layout", "type": "string", "jsonPath": ".status.layout"},
        {"name": "Next", "type": "string", "jsonPath": ".status.next[0].to"},
        {"name": "At", "type": "string", "jsonPath": ".status.next[0].local"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    upcoming = {
        "type": "object",
        "properties": {"at": _TIME, "local": _TEXT, "to": _TEXT, "odd": _TEXT},
    }
    status = {
        "type": "object",
        "properties": {
            "layout": _TEXT,
            "switch": _ANYTHING,
            "history": {"type": "array", "items": _ANYTHING},
            "next": {"type": "array", "items": upcoming},
            "conditions": CONDITIONS,
        },
    }
    return _definition("GpuCalendar", "gpucalendars", spec=spec, status=status, columns=columns)


def _short_name() -> dict[str, str]:
    return {
        "rule": f"size(self.metadata.name) <= {_NAME_MAX}",
        "message": f"metadata.name: at most {_NAME_MAX} characters",
    }


def _definition(
    kind: str,
    plural: str,
    *,
    spec: dict[str, Any],
    status: dict[str, Any],
    columns: list[dict[str, Any]],
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": [_short_name()],
    }
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }
