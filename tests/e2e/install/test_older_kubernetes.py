"""A smoke test on an older Kubernetes: install, shares in several formats, upgrade, rollback, uninstall."""

from collections.abc import Mapping
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster import build
from devcluster.fixtures import NewCluster
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.install.installation import NAMESPACE, Installation, kinds_to_delete, run_milligpu
from tests.e2e.install.test_chart import CHANGED
from tests.e2e.install.traces import traces

# The first time, Kubernetes is built.
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(3600)]

FORMATS: Mapping[str, Mapping[str, str]] = {
    "native": {names.VGPU: "300", names.VGPU_MEMORY: "1024"},
    "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "20", "nvidia.com/gpumem": "1000"},
    "whole": {"nvidia.com/gpu": "1"},
}


@pytest.fixture
def older(new_cluster: NewCluster) -> Installation:
    """A cluster of the older version, on which nothing is installed."""
    # By default a kubelet of this version does not take devcluster's delay before containers restart.
    gates = {"KubeletCrashLoopBackOffMax": True}
    cluster = new_cluster(real_nodes=1, kubernetes=build.OLDER_KUBE, feature_gates=gates)
    cluster.start_services()
    made = Installation(cluster)
    made.prepare()
    return made


def test_the_chart_works_on_an_older_kubernetes(older: Installation) -> None:
    cluster = older.cluster
    version = build.kubernetes_version(build.OLDER_KUBE)
    checked = run_milligpu(
        "doctor", "--cluster", "--namespace", "kube-system", "--kubeconfig", str(cluster.kubeconfig)
    )
    assert "FAILED" not in checked
    assert version in checked
    older.install()

    for name, resources in FORMATS.items():
        cluster.client.create(pod(name, resources=resources), namespace="default")
    for name in FORMATS:
        wait_for_phase(cluster, "default", name, "Running", deadline_s=120)
        assert grant(older, name)
    # Policies that change pods are newer than this version: the webhook does what they would do.
    copied = pod("copied", resources=FORMATS["native"], annotations={names.GRANT: grant(older, "native")})
    cluster.client.create(copied, namespace="default")
    wait_for_phase(cluster, "default", "copied", "Running", deadline_s=120)
    assert grant(older, "copied") != grant(older, "native")

    older.helm("upgrade", values=CHANGED)
    older.run_pod("after-upgrade", "true")
    older.helm("rollback")
    cluster.nodes[0].restart_kubelet()
    until("the node to have shares", lambda: older.shares() == 2000, 60)
    older.run_pod("after-rollback", "true")
    for name in FORMATS:
        found: Any = cluster.client.get(Pod, name, namespace="default")
        assert [each.restartCount for each in found.status.containerStatuses] == [0], name

    older.helm("uninstall")
    cluster.kubectl("delete", "crd", *kinds_to_delete())
    cluster.kubectl("delete", "namespace", NAMESPACE)
    assert traces(cluster) == older.before


def grant(installation: Installation, name: str) -> str:
    """The grant of a pod."""
    found: Any = installation.cluster.client.get(Pod, name, namespace="default")
    return found.metadata.annotations[names.GRANT]
