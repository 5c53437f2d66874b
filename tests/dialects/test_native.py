from typing import Any

import pytest

from milligpu.dialects import native, read_pod
from milligpu.model.affinity import AffinityLabels
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import ComputeCapability
from milligpu.model.group import PodGroup
from milligpu.model.policy import PlacementStrategy, SharePolicy
from milligpu.model.request import ContainerKind, ContainerRequest, PodRef, ShareRequest
from milligpu.model.requirements import Requirements
from milligpu.model.units import Mib, Milli


def pod(limits: object = None, annotations: object = None, **spec: object) -> dict[str, Any]:
    main: dict[str, Any] = {"name": "main", "resources": {"limits": limits}}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": annotations},
        "spec": {"containers": [main], **spec},
    }


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"nvidia.com/vgpu": 300}, ShareRequest(1, Milli(300))),
        ({"nvidia.com/vgpu": "300"}, ShareRequest(1, Milli(300))),
        ({"nvidia.com/vgpu": "1k"}, ShareRequest(1, Milli(1000))),
        ({"nvidia.com/vgpu": 3000}, ShareRequest(3, Milli(1000))),
        ({"nvidia.com/vgpu": 500, "nvidia.com/vgpu-memory": "4096"}, ShareRequest(1, Milli(500), Mib(4096))),
        ({"nvidia.com/gpu": 2}, ShareRequest(2, Milli(1000))),
        ({"nvidia.com/gpu": 0}, None),
        ({"nvidia.com/vgpu": "0"}, None),
        ({"cpu": "4", "memory": "1Gi"}, None),
        (None, None),
    ],
)
def test_resources_mean_what_the_format_says(limits: object, share: ShareRequest | None) -> None:
    request = native.read_request(pod(limits))
    assert request.pod == PodRef("team", "p", "u")
    assert request.containers == (ContainerRequest("main", share),)
    assert request.wants_gpu == (share is not None)


def test_each_annotation_is_read() -> None:
    request = native.read_request(
        pod(
            {"nvidia.com/vgpu": 300},
            {
                "milligpu.dev/class": "gold",
                "milligpu.dev/require": "memory>=16Gi, cc>=8.0",
                "milligpu.dev/policy": "best-effort",
                "milligpu.dev/limit": "800",
                "milligpu.dev/priority": "5",
                "milligpu.dev/strategy": "spread",
                "milligpu.dev/affinity": "blue",
                "milligpu.dev/anti-affinity": "noisy",
                "milligpu.dev/exclusion": "team-a",
                "milligpu.dev/group": "job",
                "milligpu.dev/group-size": "4",
                "example.com/other": "ignored",
            },
        )
    )
    assert request.containers[0].share == ShareRequest(1, Milli(300), limit=Milli(800))
    assert request.gpu_class == "gold"
    assert request.requirements == Requirements(memory_min=Mib(16384), capability_min=ComputeCapability(8, 0))
    assert (request.policy, request.priority, request.strategy) == (
        SharePolicy.BEST_EFFORT,
        5,
        PlacementStrategy.SPREAD,
    )
    assert request.locality == AffinityLabels("blue", "noisy", "team-a")
    assert request.group == PodGroup("job", 4, 4)


def test_init_containers_and_sidecars_keep_their_kind_and_the_formula() -> None:
    found = pod({"nvidia.com/vgpu": 300, "cpu": "1"})
    found["spec"]["initContainers"] = [
        {"name": "fetch", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
        {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
    ]
    found["spec"]["overhead"] = {"cpu": "100m"}
    request = native.read_request(found)
    assert [container.kind for container in request.containers] == [
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.MAIN,
    ]
    assert (request.cpu_milli, request.memory_mib) == (3100, 1024)


@pytest.mark.parametrize(
    ("limits", "annotations", "field"),
    [
        ({"nvidia.com/vgpu": "30O"}, None, "containers[main].resources.limits[nvidia.com/vgpu]"),
        ({"nvidia.com/vgpu": 1500}, None, "containers[main].resources.limits[nvidia.com/vgpu]"),
        ({"nvidia.com/vgpu": -1}, None, "containers[main].resources.limits[nvidia.com/vgpu]"),
        ({"nvidia.com/vgpu-memory": 5}, None, "containers[main].resources.limits[nvidia.com/vgpu-memory]"),
        (
            {"nvidia.com/vgpu": 0, "nvidia.com/vgpu-memory": 5},
            None,
            "containers[main].resources.limits[nvidia.com/vgpu]",
        ),
        ({"nvidia.com/vgpu": 5, "nvidia.com/vgpu-memory": "4Gib"}, None, "…[nvidia.com/vgpu-memory]"),
        ({"nvidia.com/gpu": 1, "nvidia.com/vgpu": 5}, None, "containers[main].resources.limits[nvidia.com/gpu]"),
        ({"nvidia.com/gpu": 65}, None, "containers[main].resources.limits[nvidia.com/gpu]"),
        ({"nvidia.com/gpu": "all"}, None, "containers[main].resources.limits[nvidia.com/gpu]"),
        ("300", None, "containers[main].resources.limits"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/limit": "400"}, "milligpu.dev/limit"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/limit": 800}, "metadata.annotations[milligpu.dev/limit]"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/polcy": "fixed"}, "milligpu.dev/polcy"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/policy": "fair"}, "milligpu.dev/policy"),
        (
            {"nvidia.com/vgpu": 500},
            {"milligpu.dev/policy": "fixed", "milligpu.dev/limit": "600"},
            "milligpu.dev/limit",
        ),
        ({"nvidia.com/vgpu": 1}, {"milligpu.dev/shares": '{"main": {"milli": 0, "mib": 9}}'}, "milligpu.dev/limit"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/priority": "high"}, "milligpu.dev/priority"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/group": "a"}, "milligpu.dev/group-size"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/group-size": "2"}, "milligpu.dev/group"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/affinity": "a b"}, "milligpu.dev/affinity"),
        ({"nvidia.com/vgpu": 500}, {"milligpu.dev/require": "ecccc"}, "milligpu.dev/require"),
        ({"nvidia.com/vgpu": 500}, ["x"], "metadata.annotations"),
    ],
)
def test_a_bad_request_is_refused_with_its_field(limits: object, annotations: object, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        native.read_request(pod(limits, annotations))
    assert caught.value.field.endswith(field.removeprefix("…"))


def test_limits_and_requests_of_a_device_must_agree() -> None:
    found = pod()
    found["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/vgpu": "1k"},
        "requests": {"nvidia.com/vgpu": 1000},
    }
    assert native.read_request(found).wants_gpu
    found["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/vgpu": 900}
    with pytest.raises(BadRequest, match="its limit, 1k"):
        native.read_request(found)


@pytest.mark.parametrize(
    "broken",
    [{}, {"metadata": {}}, {"metadata": {"name": "p"}, "spec": {"containers": {"a": 1}}}, {"metadata": []}],
)
def test_a_manifest_that_is_no_pod_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        native.read_request(broken)


def test_the_old_name_of_a_groups_minimum_is_read() -> None:
    def group(**minimum: str) -> PodGroup | None:
        notes = {"milligpu.dev/group": "job", "milligpu.dev/group-size": "4"}
        notes |= {f"milligpu.dev/group-{key.replace('_', '-')}": value for key, value in minimum.items()}
        limits = {"nvidia.com/vgpu": 300}
        spec = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
        return read_pod({"metadata": {"name": "p", "annotations": notes}, "spec": spec}).group

    assert group(least="3") == group(min_count="3") == PodGroup("job", 4, 3)
    assert group(least="2", min_count="3") == PodGroup("job", 4, 3)
