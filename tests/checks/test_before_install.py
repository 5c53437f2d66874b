"""What `milligpu doctor --cluster` says about clusters of several kinds."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from milligpu.checks import before_install as checks
from milligpu.checks.before_install import ClusterFacts
from milligpu.checks.result import CheckLevel, CheckOutcome, CheckResult
from milligpu.model import names

Checked = Callable[[ClusterFacts], Iterable[CheckResult]]


def node(name: str = "n1", **changes: Any) -> dict[str, Any]:
    info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4", **changes.pop("info", {})}
    status = {"nodeInfo": info, "allocatable": changes.pop("allocatable", {}), "capacity": {}}
    return {"metadata": {"name": name, **changes}, "status": status}


def daemons(name: str, image: str, **labels: str) -> dict[str, Any]:
    containers = [{"name": name, "image": image}]
    metadata = {"name": name, "namespace": "gpu-operator", "labels": labels}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": containers}}}}


GOOD = ClusterFacts("v1.36.3", (node(labels={"nvidia.com/gpu.present": "true"}),))
PLUGIN = daemons("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.19.0")


@pytest.mark.parametrize(
    "check",
    [
        checks.versions,
        checks.permissions,
        checks.pod_security,
        checks.runtimes,
        checks.gpu_nodes,
        checks.other_plugins,
    ],
)
def test_a_good_cluster_passes(check: Checked) -> None:
    results = list(check(GOOD))
    assert results
    assert {each.result for each in results} == {CheckOutcome.PASSED}


@pytest.mark.parametrize(
    ("check", "facts", "message", "fix"),
    [
        (checks.versions, replace(GOOD, version="v1.32.9-gke.1"), "v1.32.9-gke.1 is older than 1.33", "upgrade"),
        (
            checks.versions,
            replace(GOOD, nodes=(node("old", info={"kubeletVersion": "v1.31.0"}),)),
            "old (v1.31.0)",
            "upgrade these nodes",
        ),
        (checks.versions, replace(GOOD, unread={"policies": "404"}), "validatingadmissionpolicies: 404", "serve"),
        (
            checks.permissions,
            replace(GOOD, forbidden=("clusterroles",)),
            "not allowed to create: clusterroles",
            "admin",
        ),
        (
            checks.pod_security,
            replace(GOOD, agent_refused='violates PodSecurity "baseline:latest"'),
            "violates PodSecurity",
            "kubectl create namespace milligpu && kubectl label namespace milligpu pod-security",
        ),
        (
            checks.runtimes,
            replace(GOOD, nodes=(node(info={"containerRuntimeVersion": "docker://27.0.1"}),)),
            "without CDI: n1 (docker://27.0.1)",
            "containerd 1.7 or later",
        ),
        (
            checks.other_plugins,
            replace(GOOD, nodes=(node(allocatable={names.WHOLE_GPU: "8"}),), daemonsets=(PLUGIN,)),
            "another plugin on n1; DaemonSets: gpu-operator/nvidia-device-plugin-daemonset",
            "node by node",
        ),
    ],
)
def test_what_is_in_the_way_is_named_with_the_fix(
    check: Checked, facts: ClusterFacts, message: str, fix: str
) -> None:
    [found] = [each for each in check(facts) if each.is_error]
    assert message in found.message
    assert fix in found.fix


def test_containerd_1_7_and_a_cluster_without_gpus_are_warnings() -> None:
    facts = replace(GOOD, nodes=(node(info={"containerRuntimeVersion": "containerd://1.7.27"}),))
    results = [*checks.runtimes(facts), *checks.gpu_nodes(facts)]
    assert [(each.level, each.result) for each in results] == [(CheckLevel.WARNING, CheckOutcome.FAILED)] * 2
    assert "softgpu.enabled=true" in results[1].fix


def test_milligpus_own_gpus_and_daemonsets_are_no_other_plugin() -> None:
    ours = node(allocatable={names.VGPU: "1000", names.WHOLE_GPU: "1"}, annotations={names.INVENTORY: "{}"})
    agent = daemons("milligpu-gpu-plugin", "milligpu.dev/milligpu-node:1", **{"app.kubernetes.io/name": "milligpu"})
    [result] = checks.other_plugins(replace(GOOD, nodes=(ours,), daemonsets=(agent,)))
    assert result.result is CheckOutcome.PASSED
