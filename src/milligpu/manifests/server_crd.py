"""`GpuServer`: a machine outside of the cluster's nodes, or next to them, whose GPUs pods use over the network."""

from typing import Any

import msgspec

from milligpu.manifests.crds import CONDITIONS, GROUP, VERSION

_NAME_MAX = 63


def server_crd() -> dict[str, Any]:
    """Return the definition, as plain data without shared parts, which YAML would write as references."""
    spec: dict[str, Any] = {
        "type": "object",
        "required": ["address", "authority"],
        "properties": {
            "address": {
                "type": "string",
                "minLength": 3,
                "maxLength": 300,
                "pattern": r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$",
                "description": "HOST:PORT at which pods reach the server.",
            },
            "authority": {
                "type": "string",
                "minLength": 1,
                "maxLength": 16384,
                "pattern": "^-----BEGIN CERTIFICATE-----",
                "description": "Certificate of the pool's CA in PEM, by which pods know the server.",
            },
            "cordoned": {
                "type": "boolean",
                "description": "No new shares go to this server; pods that hold a share keep it.",
            },
        },
    }
    status = {
        "type": "object",
        "properties": {
            "gpus": {"type": "integer", "minimum": 0},
            "models": {"type": "string", "maxLength": 4096},
            "heartbeat": {"type": "string", "format": "date-time"},
            # The document of the agents' inventories, which the scheduler service reads.
            "inventory": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "conditions": CONDITIONS,
        },
    }
    columns = [
        {"name": "Address", "type": "string", "jsonPath": ".spec.address"},
        {"name": "GPUs", "type": "integer", "jsonPath": ".status.gpus"},
        {"name": "Models", "type": "string", "jsonPath": ".status.models"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    rules = [
        {
            "rule": f"size(self.metadata.name) <= {_NAME_MAX}",
            "message": f"metadata.name: at most {_NAME_MAX} characters",
        }
    ]
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "required": ["spec"],
                "properties": {"spec": spec, "status": status},
                "x-kubernetes-validations": rules,
            }
        },
    }
    kinds = {"kind": "GpuServer", "listKind": "GpuServerList", "plural": "gpuservers", "singular": "gpuserver"}
    found = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gpuservers.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Cluster", "names": kinds, "versions": [version]},
    }
    return msgspec.json.decode(msgspec.json.encode(found))
