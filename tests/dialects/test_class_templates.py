"""A class's resource in templates: replaced, and followed through every way in which a manifest changes."""

import json
from typing import Any

import pytest

from milligpu.dialects.choose import read_pod
from milligpu.dialects.class_templates import LAST_APPLIED, replace_class_resources
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.model.errors import BadRequest

GPU = "nvidia.com/gpu"
CLASS = "milligpu.dev/class"


def workload(
    limits: dict[str, Any], notes: dict[str, str] | None = None, kind: str = "Deployment"
) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {"annotations": notes or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}, {"name": "proxy"}]},
    }
    for key in reversed(PATHS[kind]):
        pod = {key: pod}
    return {"metadata": {"name": "d"}, **pod}


def limits_of(found: dict[str, Any], kind: str = "Deployment") -> dict[str, Any]:
    return pod_of_template(kind, found)["spec"]["containers"][0]["resources"]["limits"]


def class_of(found: dict[str, Any], kind: str = "Deployment") -> str | None:
    return pod_of_template(kind, found)["metadata"]["annotations"].get(CLASS)


def applied(
    manifest: dict[str, Any], stored: dict[str, Any] | None = None, last: dict[str, Any] | None = None
) -> Any:
    """What kubectl sends: the stored object with what changed in the manifest, and a copy of the manifest."""
    sent = json.loads(json.dumps(stored or manifest))
    if stored is not None:
        limits, before, now = limits_of(sent), limits_of(last or manifest), limits_of(manifest)
        for key in before.keys() - now.keys():
            limits.pop(key, None)
        limits |= now
        notes = sent["spec"]["template"]["metadata"]["annotations"]
        notes |= manifest["spec"]["template"]["metadata"]["annotations"]
    sent["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(manifest)}
    return sent


@pytest.mark.parametrize("kind", [kind for kind, path in PATHS.items() if path])
def test_the_resource_is_replaced_and_reads_as_the_same_request(kind: str) -> None:
    manifest = workload({"gpu-gold": 2, "cpu": "1"}, kind=kind)
    found = replace_class_resources(kind, manifest, {})
    assert limits_of(found, kind) == {GPU: 2, "cpu": "1"}
    assert class_of(found, kind) == "gold"
    assert read_pod(pod_of_template(kind, found)) == read_pod(pod_of_template(kind, manifest))
    assert limits_of(manifest, kind) == {"gpu-gold": 2, "cpu": "1"}
    assert replace_class_resources(kind, found, found) == found


def test_templates_without_a_class_stay_as_they_are() -> None:
    for manifest in (workload({GPU: 1}, {CLASS: "gold"}), workload({"nvidia.com/vgpu": 300}), workload({})):
        assert replace_class_resources("Deployment", manifest, manifest) == manifest


def test_bad_requests_are_refused_in_the_users_words() -> None:
    with pytest.raises(BadRequest, match="gpu-silver"):
        replace_class_resources("Deployment", workload({"gpu-silver": 1}, {CLASS: "gold"}), {})
    with pytest.raises(BadRequest, match="the only kind of GPU in its container"):
        replace_class_resources("Deployment", workload({"gpu-silver": 1, GPU: 1}), {})


def sent_again(sent: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """What admission makes of it, the second time, too: the API server may ask about its own answer."""
    found = replace_class_resources("Deployment", sent, stored)
    assert replace_class_resources("Deployment", found, stored) == found
    return found


def stored_gold(count: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    manifest = workload({"gpu-gold": count})
    return manifest, replace_class_resources("Deployment", applied(manifest), {})


def test_the_same_manifest_again_changes_nothing() -> None:
    manifest, stored = stored_gold()
    assert replace_class_resources("Deployment", applied(manifest, stored, manifest), stored) == stored


@pytest.mark.parametrize("copy", [True, False], ids=["kubectl", "another tool"])
def test_another_count_and_another_class_replace_the_old_ones(copy: bool) -> None:
    manifest, stored = stored_gold()
    if not copy:
        del stored["metadata"]["annotations"]
    for limits, count, name in (({"gpu-gold": 2}, 2, "gold"), ({"gpu-silver": 1}, 1, "silver")):
        sent = applied(workload(limits), stored, manifest)
        if not copy:
            del sent["metadata"]["annotations"]
        found = sent_again(sent, stored)
        assert (limits_of(found), class_of(found)) == ({GPU: count}, name)


def test_a_class_that_was_taken_out_is_gone() -> None:
    manifest, stored = stored_gold()
    found = sent_again(applied(workload({}), stored, manifest), stored)
    assert (limits_of(found), class_of(found)) == ({}, None)


def test_a_share_in_place_of_a_class_is_only_the_share() -> None:
    manifest, stored = stored_gold()
    found = sent_again(applied(workload({"nvidia.com/vgpu": 300}), stored, manifest), stored)
    assert (limits_of(found), class_of(found)) == ({"nvidia.com/vgpu": 300}, None)


def test_what_the_user_wrote_stays() -> None:
    manifest, stored = stored_gold()
    found = sent_again(applied(workload({GPU: 1}, {CLASS: "gold"}), stored, manifest), stored)
    assert (limits_of(found), class_of(found)) == ({GPU: 1}, "gold")
    with pytest.raises(BadRequest, match="gpu-silver"):
        replace_class_resources("Deployment", applied(workload({"gpu-silver": 1}, {CLASS: "gold"}), stored), stored)


def test_changes_that_do_not_concern_the_manifest_leave_the_template_alone() -> None:
    _, stored = stored_gold()
    scaled = json.loads(json.dumps(stored))
    scaled["spec"]["replicas"] = 5
    assert replace_class_resources("Deployment", scaled, stored) == scaled
