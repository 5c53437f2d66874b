"""The chart on a real node, as an admin uses it: install, a share that is held, upgrade, rollback, uninstall."""

import json
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import Pod

from deploy.chart import CHART
from devcluster import images
from devcluster.fixtures import new_namespace
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from tests.e2e.install.installation import NAMESPACE, RELEASE, Installation, kinds_to_delete, run_milligpu
from tests.e2e.install.traces import in_namespace, traces
from tests.e2e.life.test_upgrade import Stream
from tests.e2e.scheduling import grants, overcommitted
from tests.e2e.test_versions import Tenants

# `make test` makes the images beforehand; alone, these tests make them themselves.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CHANGED: dict[str, Any] = {
    "dialects": {"parts": 5},
    "agent": {"extraArgs": ["--audit-every=5"]},
    "networkPolicy": {"enabled": True},
}
LARGE = {"name": "large", "requirements": "memory>=16Gi"}


def test_the_readmes_commands_install_it_as_printed(bare: Installation) -> None:
    kubeconfig = ("--kubeconfig", str(bare.cluster.kubeconfig))
    if not bare.installed:
        checked = run_milligpu("doctor", "--cluster", "--namespace", "kube-system", *kubeconfig)
        assert "FAILED" not in checked
        assert "tried in the namespace kube-system" in " ".join(checked.split())
    bare.install()
    installing = next(text for command, text in bare.printed.items() if command.startswith("helm install"))
    assert f"helm test {RELEASE} -n {NAMESPACE}" in installing, "the notes name the next command"


@pytest.mark.long
def test_classes_of_the_values_are_kept_and_those_of_people_are_not_touched(installation: Installation) -> None:
    cluster = installation.cluster

    def classes() -> dict[str, Any]:
        found = json.loads(cluster.kubectl("get", "gpuclasses", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each["spec"] for each in found}

    by_hand = {"apiVersion": "milligpu.dev/v1alpha1", "kind": "GpuClass", "metadata": {"name": "by-hand"}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**by_hand, "spec": {"requirements": "ecc"}}))
    theirs = {"by-hand": {"requirements": "ecc"}}
    installation.helm("upgrade", values={"classes": [LARGE]})
    large = {"large": {"requirements": "memory>=16Gi"}}
    until("the class", lambda: classes() == {**theirs, **large}, 60)
    cluster.kubectl("delete", "gpuclass", "large")
    until("the class again", lambda: classes() == {**theirs, **large}, 60)
    installation.helm("rollback")
    until("no class of the chart", lambda: classes() == theirs, 60)
    cluster.kubectl("delete", "gpuclass", "by-hand")


def test_the_agent_asks_the_container_runtime_about_a_pod(installation: Installation) -> None:
    # Without it, pods that the kubelet never starts would not be found.
    found: Any = installation.run_pod("asked-about", "sleep", "infinity")
    code = f"""
import asyncio, pathlib
from milligpu.kubelet.runtime import ask_about_pod
print(asyncio.run(ask_about_pod(pathlib.Path("/run/containerd/containerd.sock"), "{found.metadata.uid}")))
"""
    assert "ready_sandboxes=1, created=0, others=1" in installation.exec_in_agent("python3", "-c", code)
    installation.cluster.kubectl("delete", "pod", "asked-about", "-n", "default", "--now")


def test_the_agent_for_nvidias_gpus_starts_and_says_what_its_node_lacks(installation: Installation) -> None:
    cluster = installation.cluster
    file = cluster.folder / "nvidia.yaml"
    selector = {"feature.node.kubernetes.io/pci-10de.present": None}
    file.write_text(yaml.safe_dump({"nvidia": {"enabled": True, "nodeSelector": selector}}))
    cluster.helm("upgrade", RELEASE, str(CHART), "--values", str(file), "-n", NAMESPACE)

    def said() -> str:
        words = ("logs", "-n", NAMESPACE, "-l", "app=milligpu-agent", "--tail=20", "--prefix", "--ignore-errors")
        return cluster.kubectl(*words, check=False)

    # This node has no NVIDIA driver: the pod runs, with the node's root directory, and ends with the reason.
    until("the agent to say why it ends", lambda: "could not initialize NVML" in said(), 120, last_state=said)
    installation.helm("upgrade")
    until("the node to have shares", lambda: installation.shares() == 2000, 60)


@pytest.mark.long
def test_tenants_compute_and_pods_start_all_the_time_while_the_chart_is_upgraded_and_rolled_back(
    installation: Installation,
) -> None:
    cluster = installation.cluster
    with new_namespace(cluster) as namespace:
        tenants = Tenants(cluster, namespace, images.BASE.reference)
        tenants.add("first")
        # Pods start all the time: there is no gap in which the kubelet rejects them.
        with Stream(cluster, namespace, images.BASE.reference) as stream:
            for name, change in (
                ("upgraded", lambda: installation.helm("upgrade", values=CHANGED)),
                ("rolled-back", lambda: installation.helm("rollback")),
            ):
                change()
                tenants.add(name)
                tenants.go_on()
        until("the last pods", lambda: not stream.unfinished(), 120)
        assert stream.failed() == {}
        assert stream.made > 2
        assert tenants.never_restarted()
        assert overcommitted(grants(cluster, namespace), mib=40960) == []


def test_the_chart_installs_holds_a_share_is_upgraded_under_tenants_and_leaves_nothing(
    installation: Installation,
) -> None:
    cluster = installation.cluster
    installation.run_pod("tenant", "sleep", "infinity")
    installation.helm("upgrade", values=CHANGED)
    installation.run_pod("after-upgrade", "true")
    installation.helm("rollback")
    installation.run_pod("after-rollback", "true")
    tenant = cluster.client.get(Pod, "tenant", namespace="default")
    assert tenant.status
    assert tenant.status.phase == "Running"
    assert [each.restartCount for each in tenant.status.containerStatuses or ()] == [0]

    queue = {"apiVersion": "milligpu.dev/v1alpha1", "kind": "GpuQueue", "metadata": {"name": "all"}}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**queue, "spec": {"namespaces": ["default"]}}))
    cluster.kubectl("wait", "--for=condition=Ready", "gpuqueue/all", "--timeout=60s")
    # One GPU has a tenant, so nobody gets both.
    cluster.client.create(pod("waiting", resources={"nvidia.com/gpu": "2"}), namespace="default")
    gates = ("get", "pod", "waiting", "-n", "default", "-o", "jsonpath={.spec.schedulingGates[*].name}")
    assert cluster.kubectl(*gates) == "milligpu.dev/queue"

    installation.helm("uninstall")
    for name in ("tenant", "waiting"):
        events = cluster.kubectl("events", f"--for=pod/{name}", "-o", "jsonpath={.items[*].reason}")
        assert "MilligpuUninstalling" in events.split(), name
    assert cluster.kubectl(*gates) == ""
    assert in_namespace(cluster, NAMESPACE) == {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    # With the CRDs go all objects of their kinds, so the chart keeps them.
    cluster.kubectl("delete", "crd", *kinds_to_delete())
    cluster.kubectl("delete", "namespace", NAMESPACE)
    assert traces(cluster) == installation.before
    # Pods without GPUs do not need milligpu.
    cluster.client.create(pod("plain", ["true"]), namespace="default")
    wait_for_phase(cluster, "default", "plain", "Succeeded")
