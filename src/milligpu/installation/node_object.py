"""What milligpu wrote into a Node object, and the patches that remove it. Pure."""

from collections.abc import Mapping
from typing import Any

from milligpu.agent.node_labels import node_labels, vgpu_type_label
from milligpu.model import names


def metadata_patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch without milligpu's annotations, labels and taints; None if the node has none of them.

    It names the version of the node that was read: a taint that is added meanwhile must not be lost.
    """
    meta: dict[str, Any] = node["metadata"]
    present, noted = _texts(meta, "labels"), _texts(meta, "annotations")
    annotations = _ours(noted)
    labels = {**_ours(present), **_agent_labels(present, noted)}
    taints: list[dict[str, Any]] = node.get("spec", {}).get("taints", [])
    kept = [taint for taint in taints if not taint["key"].startswith(names.PREFIX)]
    patch: dict[str, Any] = {}
    if kept != taints:
        patch["spec"] = {"taints": kept}
    if not (annotations or labels or patch):
        return None
    removed = {"annotations": annotations, "labels": labels}
    return {"metadata": {"resourceVersion": meta["resourceVersion"], **removed}, **patch}


def conditions_patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a strategic merge patch of the status without milligpu's conditions; None if there are none."""
    conditions: list[dict[str, str]] = node.get("status", {}).get("conditions", [])
    ours = [each["type"] for each in conditions if each["type"].startswith(names.PREFIX)]
    if not ours:
        return None
    return {"status": {"conditions": [{"type": kind, "$patch": "delete"} for kind in ours]}}


def _ours(present: Mapping[str, str]) -> dict[str, None]:
    return {key: None for key in present if key.startswith(names.PREFIX)}


def _texts(meta: Mapping[str, Any], key: str) -> dict[str, str]:
    return meta.get(key) or {}


def _agent_labels(labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, None]:
    """NVIDIA's labels and `vgpu.type`, if an agent wrote them: a node with an agent has an inventory."""
    if names.INVENTORY not in annotations:
        return {}
    kind, _ = vgpu_type_label([], labels.get(names.VGPU_TYPE), annotations.get(names.VGPU_TYPE_WRITTEN))
    return {key: None for key in (*node_labels([], "", labels), *kind) if key in labels}
