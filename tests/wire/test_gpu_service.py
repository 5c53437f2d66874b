"""What a `GpuService` may say, and how everything else is refused."""

from typing import Any

import pytest

from milligpu.manifests.service_crd import service_crd
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_service import GpuService, LoadTarget, ReplicaRange, ScaleKind, ScaleTarget
from milligpu.wire.gpu_service import GpuServiceStatus, parse_service
from milligpu.wire.scale import parse_selector

SPEC: dict[str, Any] = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"},
    "load": {"preset": "vllm"},
    "share": {"max": 600},
}


def parse(**spec: Any) -> GpuService:
    return parse_service({"metadata": {"name": "chat", "namespace": "a"}, "spec": {**SPEC, **spec}})


def test_what_is_left_out_has_its_default() -> None:
    found = parse()
    assert found.target == ScaleTarget(ScaleKind.DEPLOYMENT, "chat")
    assert (found.source.port, found.source.running) == (8000, "vllm:num_requests_running")
    assert (found.share.min, found.share.max, found.replicas, found.load) == (None, 600, None, LoadTarget())
    assert (found.deadline_s, found.paused) == (600, False)


def test_all_fields_are_read() -> None:
    load = {"port": 9000, "path": "/m", "requests": "n_total", "running": "r", "waiting": "w"}
    found = parse(load=load, target={"running": 64}, replicas={"max": 3}, update={"deadline": "90s"}, paused=True)
    assert (found.source.port, found.source.path, found.source.waiting) == (9000, "/m", "w")
    assert (found.load.running, found.replicas, found.deadline_s, found.paused) == (
        64,
        ReplicaRange(1, 3),
        90,
        True,
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"front": {}}, "spec.front: invalid value {}: must be left out; known are scaleTargetRef"),
        ({"idleAfter": "10m"}, "spec.idleAfter"),
        ({"update": {"gap": "0s"}}, "spec.update.gap"),
        ({"share": {"max": 600, "memoryMin": "6Gi"}}, "spec.share.memoryMin"),
        (
            {"share": {"min": 700, "max": 600}},
            "spec.share.min: invalid value 700: must be a whole number from 1 to 600",
        ),
        ({"share": {}}, "spec.share.max: required"),
        ({"replicas": {"min": 0, "max": 2}}, "spec.replicas.min: invalid value 0"),
        ({"replicas": {"min": 3, "max": 2}}, "spec.replicas.min: invalid value 3"),
        ({"target": {"requests": 0}}, "spec.target.requests: invalid value 0"),
        ({"target": {"requests": 1, "running": 1}}, "must be one of requests and running, or neither"),
        ({"target": {"running": 1}, "load": {"preset": "torchserve"}}, "spec.load.running: required"),
        ({"load": {"port": 80, "running": "r"}}, "spec.load.requests: required"),
        ({"load": {}}, "spec.load: required: a preset, or port, path and the names of metrics"),
        ({"load": {"preset": "x"}}, "spec.load.preset: invalid value 'x': must be vllm, sglang"),
        ({"load": {"preset": "vllm", "path": "/x"}}, "spec.load.path"),
        ({"load": {"port": 80, "path": "/x?y", "requests": "n"}}, "spec.load.path: invalid value '/x?y'"),
        ({"load": {"port": 80, "path": "//host/x", "requests": "n n"}}, "spec.load.requests: invalid value 'n n'"),
        ({"load": {"port": 99999, "requests": "n"}}, "spec.load.port: invalid value 99999"),
        ({"scaleTargetRef": {"kind": "Job", "name": "x"}}, "spec.scaleTargetRef.kind: invalid value 'Job'"),
        ({"scaleTargetRef": {"kind": "Deployment", "name": "../x"}}, "spec.scaleTargetRef.name"),
        ({"update": {"deadline": "9s"}}, "must be a time from 10s to 24h"),
        ({"paused": "yes"}, "spec.paused: invalid value 'yes': must be true or false"),
    ],
)
def test_what_cannot_be_used_is_refused_with_field_value_and_what_is_allowed(
    spec: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(**spec)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("app=chat", {"app": "chat", "x": "y"}, True),
        ("app=chat,tier in (a,b)", {"app": "chat", "tier": "b"}, True),
        ("app=chat,tier in (a,b)", {"app": "chat"}, False),
        ("app=chat,tier notin (a)", {"app": "chat"}, True),
        ("app!=chat", {"app": "chat"}, False),
        ("app,!old", {"app": ""}, True),
        ("app,!old", {"app": "", "old": ""}, False),
        ("", {"app": "chat"}, False),
    ],
)
def test_selectors_are_read_as_scale_has_them(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_selector(text).matches(labels) is matches


def test_the_status_has_a_schema_for_every_field() -> None:
    [version] = service_crd()["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(GpuServiceStatus.__struct_fields__) == set(known)
