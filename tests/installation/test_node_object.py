"""What is removed from a Node object when milligpu is uninstalled, and what stays."""

from typing import Any, cast

from milligpu.agent.node_labels import node_labels
from milligpu.installation.node_object import conditions_patch, metadata_patch
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib

FOREIGN = {"kubernetes.io/hostname": "n1", "nvidia.com/gpu.deploy.driver": "true"}


def apply(found: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A JSON merge patch, as RFC 7396 says."""
    result = {**found}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply(result.get(key, {}), cast(Any, value)) if isinstance(value, dict) else value
    return result


def node(**changes: Any) -> dict[str, Any]:
    gpus = [Gpu("GPU-1", "NVIDIA A100", Mib(40960))]
    labels = {key: value for key, value in node_labels(gpus, "610.1.2", {}).items() if value}
    metadata = {
        "name": "n1",
        "resourceVersion": "7",
        "annotations": {names.INVENTORY: "{}", names.AGENT: "x", names.GPU_SETTINGS: "{}", "team": "a"},
        "labels": {**FOREIGN, **labels, names.PREFIX + "managed": "true"},
    }
    return {"metadata": {**metadata, **changes}, "spec": {}, "status": {}}


def test_only_what_milligpu_wrote_is_removed() -> None:
    patch = metadata_patch(node())
    assert patch
    left = apply(node(), patch)["metadata"]
    assert left["labels"] == FOREIGN
    assert left["annotations"] == {"team": "a"}


def test_nvidias_labels_stay_on_a_node_that_never_had_an_agent() -> None:
    labels = {"nvidia.com/gpu.product": "A100", "vgpu.type": "v100-8q-8GB"}
    assert metadata_patch(node(annotations={}, labels=labels)) is None


def test_a_vgpu_type_that_a_person_wrote_stays() -> None:
    labels = {names.VGPU_TYPE: "v100-8q-8GB"}
    theirs = node(labels=labels)
    ours = node(labels=labels, annotations={names.INVENTORY: "{}", names.VGPU_TYPE_WRITTEN: "v100-8q-8GB"})
    assert apply(theirs, metadata_patch(theirs) or {})["metadata"]["labels"] == labels
    assert apply(ours, metadata_patch(ours) or {})["metadata"]["labels"] == {}


def test_other_taints_stay_and_a_taint_added_meanwhile_is_not_lost() -> None:
    theirs = {"key": "dedicated", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    found = node(annotations={}, labels={})
    found["spec"]["taints"] = [theirs, {"key": names.PREFIX + "agent-not-ready", "effect": "NoSchedule"}]
    patch = metadata_patch(found)
    assert patch
    assert patch["spec"]["taints"] == [theirs]
    assert patch["metadata"]["resourceVersion"] == "7"


def test_conditions_of_others_stay() -> None:
    found = node()
    assert conditions_patch(found) is None
    found["status"]["conditions"] = [{"type": "Ready"}, {"type": names.PREFIX + "GpusHealthy"}]
    removed = [{"type": names.PREFIX + "GpusHealthy", "$patch": "delete"}]
    assert conditions_patch(found) == {"status": {"conditions": removed}}
