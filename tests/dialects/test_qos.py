"""Kubernetes' QoS class, and the limits that it chooses where an admin wants that."""

from typing import Any

import pytest

from milligpu import dialects
from milligpu.dialects.describe import request_data
from milligpu.dialects.normal import NormalForm, normalize
from milligpu.dialects.qos import QosClass, qos_class
from milligpu.dialects.settings import DialectSettings

ON = DialectSettings({"qos-limits": "on"})
BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = {"limits": BOTH}
BURSTABLE = {"requests": {"cpu": "500m"}}
Json = dict[str, Any]


def pod(*resources: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    containers = [{"name": f"c{at}", "resources": each} for at, each in enumerate(resources)]
    return {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": {"containers": containers, **spec}}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod({}), QosClass.BEST_EFFORT),
        (pod({"limits": {"nvidia.com/vgpu": "300"}}), QosClass.BEST_EFFORT),
        (pod({"limits": {"cpu": "0"}}), QosClass.BEST_EFFORT),
        (pod(GUARANTEED), QosClass.GUARANTEED),
        (pod({"limits": BOTH, "requests": BOTH}, GUARANTEED), QosClass.GUARANTEED),
        (pod({"limits": BOTH, "requests": {"cpu": "1000m", "memory": "1024Mi"}}), QosClass.GUARANTEED),
        (pod(GUARANTEED, {}), QosClass.BURSTABLE),
        (pod({"limits": {"cpu": "1"}}), QosClass.BURSTABLE),
        (pod({"limits": BOTH, "requests": {"cpu": "500m"}}), QosClass.BURSTABLE),
        (pod(BURSTABLE), QosClass.BURSTABLE),
        (pod(GUARANTEED, initContainers=[{"name": "i"}]), QosClass.BURSTABLE),
        (pod({}, resources=GUARANTEED), QosClass.GUARANTEED),
        (pod(GUARANTEED, resources=BURSTABLE), QosClass.BURSTABLE),
    ],
)
def test_the_class_follows_from_cpu_and_memory_alone(made: Json, expected: QosClass) -> None:
    assert qos_class(made) is expected


def shared(resources: Json, share: Json, **what: Any) -> Json:
    return pod({**resources, "limits": {**resources.get("limits", {}), **share}}, **what)


HALF = {"nvidia.com/vgpu": "500"}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (shared(GUARANTEED, HALF), {"milli": 500}),
        (shared(BURSTABLE, HALF), {"milli": 500, "limit": 1000}),
        (shared({}, HALF), {"milli": 0, "card": 500, "limit": 1000}),
        (shared({}, {**HALF, "nvidia.com/vgpu-memory": "4096"}), {"milli": 0, "mib": 4096, "limit": 1000}),
        (shared({}, HALF, annotations={"milligpu.dev/limit": "600"}), {"milli": 500, "limit": 600}),
        (shared({}, HALF, annotations={"milligpu.dev/policy": "fixed"}), {"milli": 500}),
        (shared({}, {"nvidia.com/gpu": "1"}), {"milli": 1000, "whole": True}),
        (shared(BURSTABLE, {"aliyun.com/gpu-mem": "4"}), {"mib": 4096, "limit": 1000}),
        (shared(BURSTABLE, {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}), {"limit": 300}),
    ],
)
def test_the_class_decides_where_the_pod_does_not(made: Json, expected: Json) -> None:
    share = request_data(dialects.read_pod(made, ON))["containers"]["c0"]
    assert {key: share.get(key) for key in expected} == expected
    assert ("limit" in share) == ("limit" in expected)


@pytest.mark.parametrize("resources", [GUARANTEED, BURSTABLE, {}])
def test_nothing_changes_unless_the_admin_says_so(resources: Json) -> None:
    assert request_data(dialects.read_pod(shared(resources, HALF)))["containers"]["c0"] == {"gpus": 1, "milli": 500}


@pytest.mark.parametrize("settings", [ON, DialectSettings()])
@pytest.mark.parametrize("resources", [GUARANTEED, BURSTABLE, {}])
@pytest.mark.parametrize("notes", [{}, {"milligpu.dev/shares": '{"c0": {"milli": 500, "mib": 9}}'}])
def test_an_admitted_pod_reads_as_admission_decided_whatever_the_setting_is_then(
    settings: DialectSettings, resources: Json, notes: dict[str, str]
) -> None:
    made = shared(resources, HALF, annotations=notes)
    admitted = normalize(made, NormalForm(ON))
    wanted = dialects.read_pod(made, ON).containers
    assert dialects.read_pod(admitted, settings).containers == wanted
    assert normalize(admitted, NormalForm(settings)) == admitted
    counted = admitted["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/vgpu"]
    assert counted == ("1" if resources == {} else "500"), "a quota counts what is guaranteed"
