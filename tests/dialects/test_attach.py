"""`milligpu.dev/attach`: a request in any dialect becomes a remote share, and the client is added to the pod."""

from typing import Any

import pytest

from milligpu.dialects import read_pod
from milligpu.dialects.normal import NormalForm, normalize
from milligpu.model import names
from milligpu.model.errors import BadRequest

FORM = NormalForm(client_image="registry.example.com/milligpu-client:1")


def pod(attach: str | None, limits: dict[str, Any], **container: Any) -> dict[str, Any]:
    notes = {} if attach is None else {names.ATTACH: attach}
    main = {"name": "main", "image": "app", "resources": {"limits": limits}, **container}
    return {"metadata": {"name": "train", "annotations": notes}, "spec": {"containers": [main]}}


@pytest.mark.parametrize(
    ("limits", "counted"),
    [
        ({names.VGPU: 500}, {names.REMOTE_VGPU: "500"}),
        ({names.VGPU: 500, names.VGPU_MEMORY: 2048}, {names.REMOTE_VGPU: "500", names.REMOTE_VGPU_MEMORY: "2048"}),
        ({names.WHOLE_GPU: 2}, {names.REMOTE_VGPU: "2000"}),
        ({"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8}, None),
    ],
)
def test_the_counted_resource_is_one_that_no_kubelet_counts(
    limits: dict[str, Any], counted: dict[str, str] | None
) -> None:
    made = normalize(pod("remote", limits), FORM)
    found = made["spec"]["containers"][0]["resources"]
    assert found["limits"] == found["requests"]
    assert set(found["limits"]) <= set(names.COUNTED_LOCALLY)
    assert counted is None or found["limits"] == counted
    before, after = read_pod(pod("remote", limits)), read_pod(made)
    assert before.remote
    assert after.remote
    assert [each.share for each in after.containers if each.share] == [each.share for each in before.containers]
    assert normalize(made, FORM) == made


def test_containers_with_a_share_get_the_client_and_others_do_not() -> None:
    asked = pod("remote", {names.VGPU: 500}, env=[{"name": "LD_LIBRARY_PATH", "value": "/own"}])
    asked["spec"]["containers"].append({"name": "other", "image": "x"})
    spec = normalize(asked, FORM)["spec"]
    main, other = spec["containers"]
    environment = {each["name"]: each["value"] for each in main["env"]}
    assert environment["LD_LIBRARY_PATH"] == "/opt/milligpu:/own"
    assert environment["MILLIGPU_REMOTE_CONTAINER"] == "main"
    assert "volumeMounts" not in other
    [copies] = spec["initContainers"]
    assert copies["image"] == FORM.client_image
    [token] = [
        source["serviceAccountToken"]
        for volume in spec["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]
    assert token["audience"] == "milligpu"


def test_a_local_pod_is_left_as_it_is() -> None:
    for attach in (None, "local"):
        made = normalize(pod(attach, {names.VGPU: 500}), FORM)
        assert made["spec"]["containers"][0]["resources"]["limits"] == {names.VGPU: "500"}
        assert "initContainers" not in made["spec"]


def test_without_a_client_image_a_remote_share_is_refused() -> None:
    with pytest.raises(BadRequest, match="--client-image"):
        normalize(pod("remote", {names.VGPU: 500}), NormalForm())


@pytest.mark.parametrize(
    ("attach", "limits", "match"),
    [
        ("elsewhere", {names.VGPU: 500}, "local or remote"),
        (None, {names.REMOTE_VGPU: 500}, "together with the annotation"),
        ("remote", {names.REMOTE_VGPU: 500, names.VGPU: 500}, "left out where"),
    ],
)
def test_contradictions_are_refused(attach: str | None, limits: dict[str, Any], match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        read_pod(pod(attach, limits))
