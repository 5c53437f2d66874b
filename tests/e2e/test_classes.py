"""Classes on a cluster: in pods and in templates, refused, deleted under waiting pods, and their fallbacks."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.wait import until
from milligpu.kube import config
from milligpu.model.names import CLASSES_PATH
from milligpu.status.pod import explain_pod
from tests.e2e.scheduling import grants, told
from tests.e2e.test_admission import DEADLINE_S, Admitting, admitting, apply, granted, manifest

pytestmark = pytest.mark.e2e

A100 = "model=A100, memory>=40Gi"
"""Eight GPUs: four of the node a100-0 and four of large-0."""


@pytest.fixture(scope="module")
def control_plane(guarded: Cluster) -> Cluster:
    return guarded


@pytest.fixture(scope="module", autouse=True)
def service(control_plane: Cluster) -> Iterator[Admitting]:
    yield from admitting(control_plane)


def gpu_class(name: str, requirements: str, fallback: str | None = None) -> dict[str, Any]:
    spec = {"requirements": requirements} | ({"fallback": fallback} if fallback else {})
    return {
        "apiVersion": "milligpu.dev/v1alpha1",
        "kind": "GpuClass",
        "metadata": {"name": name},
        "spec": spec,
    }


@contextmanager
def existing(cluster: Cluster, *classes: dict[str, Any]) -> Generator[None]:
    apply(cluster, "default", *classes)
    try:
        yield
    finally:
        for each in classes:
            cluster.kubectl("delete", "gpuclass", "--ignore-not-found", each["metadata"]["name"])


def workload(kind: str, name: str, pod: dict[str, Any]) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}, **pod["metadata"]}, "spec": dict(pod["spec"])}
    template["metadata"].pop("name")
    if kind == "CronJob":
        template["spec"]["restartPolicy"] = "Never"
        job = {"spec": {"template": template}}
        return _object("batch/v1", kind, name, {"schedule": "0 0 1 1 *", "jobTemplate": job})
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        return _object("batch/v1", kind, name, {"template": template})
    spec: dict[str, Any] = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return _object("apps/v1", kind, name, spec | ({"serviceName": name} if kind == "StatefulSet" else {}))


def _object(api: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def condition(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """The condition Ready of a class, once it is about the class as it is."""
    found = read_json(cluster.client, f"{CLASSES_PATH}/{name}")
    ready = [each for each in found.get("status", {}).get("conditions", ()) if each["type"] == "Ready"]
    return ready[0] if ready and ready[0]["observedGeneration"] == found["metadata"]["generation"] else None


def explanation(cluster: Cluster, namespace: str, name: str) -> str:
    with config.blocking_client(config.find_cluster(str(cluster.kubeconfig))) as client:
        return explain_pod(client, namespace, name).text


def test_pods_of_every_kind_of_workload_get_gpus_of_their_class(control_plane: Cluster, namespace: str) -> None:
    share = manifest("share", {"nvidia.com/vgpu": 300}, annotations={"milligpu.dev/class": "gold"})
    kinds = ("Deployment", "StatefulSet", "Job", "CronJob")
    made = [workload(kind, kind.lower(), manifest("p", {"gpu-gold": 1})) for kind in kinds]
    whole = manifest("whole", {"gpu-gold": 1})
    # The class, too, is new to the webhook and to the scheduler.
    with existing(control_plane, gpu_class("gold", A100)):
        apply(control_plane, namespace, share, whole, *made)
        control_plane.kubectl("create", "job", "-n", namespace, "by-hand", "--from=cronjob/cronjob")
        found = granted(control_plane, namespace, 6)
        assert {grant.node for grant in found.values()} <= {"a100-0", "large-0"}
        assert {grant.gpu_class for grant in found.values()} == {"gold"}
        assert sum(each.share.whole for grant in found.values() for each in grant.containers["main"]) == 5
        assert explanation(control_plane, namespace, "share").startswith(f"on {found['share'].node}; class gold; ")
        shown = control_plane.kubectl("get", "gpuclass", "gold").splitlines()
        assert shown[0].split() == ["NAME", "REQUIREMENTS", "FALLBACK", "READY", "REASON", "AGE"]
        until("the condition", lambda: condition(control_plane, "gold"), DEADLINE_S)
        assert "True    Usable" in control_plane.kubectl("get", "gpuclass", "gold")


def test_drivers_of_one_cluster_differ_and_a_pod_or_class_can_require_a_version(
    control_plane: Cluster, namespace: str
) -> None:
    new = manifest("new", {"nvidia.com/vgpu": 100}, annotations={"milligpu.dev/require": "driver>=550, cuda>=12.4"})
    old = manifest("old", {"nvidia.com/vgpu": 100}, annotations={"milligpu.dev/class": "driver535"})
    future = manifest("future", {"nvidia.com/vgpu": 100}, annotations={"milligpu.dev/require": "cuda>=13"})
    with existing(control_plane, gpu_class("driver535", "driver>=535, model=A100-SXM4-40GB")):
        apply(control_plane, namespace, new, old)
        found = granted(control_plane, namespace, 2)
        assert (found["new"].node, found["old"].node) == ("large-0", "a100-0")
        assert explanation(control_plane, namespace, "new").endswith("; driver 550.54.15; CUDA 12.4")
        apply(control_plane, namespace, future)
        message = until("an event", lambda: told(control_plane, namespace, "future") or None, DEADLINE_S)
        assert "2 CUDATooOld (such as a100-0/GPU-a100-0-0: has 12.2, wanted cuda>=13)" in message
        assert "6 DriverUnknown (such as " in message


def test_a_manifest_with_a_class_can_be_applied_again_and_changed(control_plane: Cluster, namespace: str) -> None:
    def applied(limits: dict[str, Any]) -> tuple[int, dict[str, Any], str | None]:
        apply(control_plane, namespace, workload("Deployment", "d", manifest("p", limits)))
        found = read_json(control_plane.client, f"/apis/apps/v1/namespaces/{namespace}/deployments/d")
        template = found["spec"]["template"]
        notes = template["metadata"].get("annotations", {})
        limits = template["spec"]["containers"][0]["resources"].get("limits", {})
        return found["metadata"]["generation"], limits, notes.get("milligpu.dev/class")

    with existing(control_plane, gpu_class("gold", A100), gpu_class("silver", "model=V100")):
        assert applied({"gpu-gold": 1}) == (1, {"nvidia.com/gpu": "1"}, "gold")
        assert applied({"gpu-gold": 1}) == (1, {"nvidia.com/gpu": "1"}, "gold")
        assert applied({"gpu-gold": 2}) == (2, {"nvidia.com/gpu": "2"}, "gold")
        assert applied({"gpu-silver": 2}) == (3, {"nvidia.com/gpu": "2"}, "silver")
        assert applied({"nvidia.com/vgpu": 300}) == (4, {"nvidia.com/vgpu": "300"}, None)
        assert applied({"gpu-gold": 1})[1:] == ({"nvidia.com/gpu": "1"}, "gold")
        assert applied({})[1:] == ({}, None)


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob"])
def test_an_unknown_class_is_refused_with_those_that_exist(
    control_plane: Cluster, namespace: str, kind: str
) -> None:
    pods = [
        manifest("p", {"gpu-bronze": 1}),
        manifest("p", {"nvidia.com/vgpu": 300}, annotations={"milligpu.dev/class": "bronze"}),
    ]
    with existing(control_plane, gpu_class("gold", A100)):
        for pod in pods:
            with pytest.raises(DevclusterError, match="'bronze': must be the name of a GpuClass; existing .*gold"):
                apply(control_plane, namespace, pod if kind == "Pod" else workload(kind, "w", pod))


def test_a_class_that_cannot_be_used_is_refused(control_plane: Cluster) -> None:
    with existing(control_plane, gpu_class("silver", "ecc", "gold"), gpu_class("gold", A100)):
        for bad, message in (
            (gpu_class("bronze", "ecccc"), "terms with commas: memory>=SIZE"),
            (gpu_class("bronze", "memory>=20Ti"), "at most 16Ti"),
            (gpu_class("bronze", "ecc", "bronze"), "must be another class"),
            (gpu_class("x" * 60, "ecc"), "at most 59 characters"),
            (gpu_class("gold", A100, "silver"), "gold -> silver -> gold"),
        ):
            with pytest.raises(DevclusterError, match=message):
                apply(control_plane, "default", bad)


def test_a_class_deleted_under_a_waiting_pod_is_the_reason_why_it_waits(
    control_plane: Cluster, namespace: str
) -> None:
    one = "uuid=GPU-a100-0-0"
    with existing(control_plane, gpu_class("gold", one)):
        apply(control_plane, namespace, manifest("first", {"gpu-gold": 1}))
        granted(control_plane, namespace, 1)
        apply(control_plane, namespace, manifest("second", {"gpu-gold": 1}))
        until("an event", lambda: "Insufficient" in told(control_plane, namespace, "second"), DEADLINE_S)
        control_plane.kubectl("delete", "gpuclass", "gold")
        until("the reason", lambda: "ClassGone" in told(control_plane, namespace, "second"), DEADLINE_S)
        assert "ClassGone (class gold does not exist; no class exists)" in explanation(
            control_plane, namespace, "second"
        )
        apply(control_plane, "default", gpu_class("gold", "uuid=GPU-a100-0-1"))
        found = granted(control_plane, namespace, 2)
        assert found["second"].gpus == ("GPU-a100-0-1",)


def test_a_fallback_is_used_while_the_class_has_no_gpu_free(control_plane: Cluster, namespace: str) -> None:
    classes = [
        gpu_class("gold", "uuid=GPU-large-0-0", "silver"),
        gpu_class("silver", "uuid=GPU-large-0-1", "bronze"),
        gpu_class("bronze", "uuid=GPU-a100-0-2"),
    ]
    with existing(control_plane, *classes):
        got: dict[str, str | None] = {}
        for name in ("first", "second", "third"):
            apply(control_plane, namespace, manifest(name, {"gpu-gold": 1}))
            got[name] = granted(control_plane, namespace, len(got) + 1)[name].gpu_class
        assert list(got.values()) == ["gold", "silver", "bronze"]
        assert "class bronze, a fallback of gold" in explanation(control_plane, namespace, "third")
        apply(control_plane, namespace, manifest("fourth", {"gpu-gold": 1}))
        message = until("an event", lambda: told(control_plane, namespace, "fourth") or None, DEADLINE_S)
        assert "fallback silver: 0/" in message
        assert "fallback bronze: 0/" in message
        control_plane.kubectl("delete", "pod", "-n", namespace, "--grace-period=0", "--force", "first")
        until("the freed GPU", lambda: "fourth" in grants(control_plane, namespace), DEADLINE_S)
        assert grants(control_plane, namespace)["fourth"].gpu_class == "gold"


def test_the_condition_follows_other_classes(control_plane: Cluster) -> None:
    def reason() -> str:
        found = until("the condition", lambda: condition(control_plane, "gold"), DEADLINE_S)
        return f"{found['status']} {found['reason']}"

    with existing(control_plane, gpu_class("gold", A100, "silver")):
        until("no fallback", lambda: reason() == "False FallbackGone", DEADLINE_S)
        with existing(control_plane, gpu_class("silver", "model=V100")):
            until("a fallback", lambda: reason() == "True Usable", DEADLINE_S)
        until("no fallback", lambda: reason() == "False FallbackGone", DEADLINE_S)


def test_what_the_api_server_refuses_without_the_webhook(control_plane: Cluster) -> None:
    """Why templates are changed: in kube-system the webhook is not asked."""
    for found in (manifest("p", {"gpu-gold": 1}), workload("Deployment", "d", manifest("p", {"gpu-gold": 1}))):
        with pytest.raises(DevclusterError, match="must be a standard resource"):
            control_plane.kubectl("apply", "-n", "kube-system", "-f", "-", stdin=json.dumps(found))
