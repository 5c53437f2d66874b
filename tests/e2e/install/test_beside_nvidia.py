"""Beside NVIDIA's GPU Operator: a node is taken over by its labels, and given back, and never has two plugins.

The operator's own DaemonSets and node labels as objects, on nodes without a kubelet. Kubernetes' DaemonSet
controller decides where their pods and ours run.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ServiceAccount

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.wait import until
from milligpu.installation.chart import chart_objects
from milligpu.installation.migrate import FormerSystem, plan_migration

pytestmark = pytest.mark.e2e

# The labels that the operator and its feature discovery put on a GPU node.
OPERATOR = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.deploy.container-toolkit": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/gpu.deploy.device-plugin": "true",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.gpu-feature-discovery": "true",
}
# As docs/install.md says, to move node by node.
VALUES: dict[str, Any] = {
    "nvidia": {
        "enabled": True,
        "nodeSelector": {"feature.node.kubernetes.io/pci-10de.present": None, "milligpu.dev/managed": "true"},
    }
}
PLUGIN, EXPORTER, OURS = "nvidia-device-plugin-daemonset", "nvidia-dcgm-exporter", "milligpu-agent"


def operand(name: str, label: str, image: str) -> dict[str, Any]:
    """A DaemonSet as the operator writes it."""
    container = {"name": name, "image": image}
    selector = {f"nvidia.com/gpu.deploy.{label}": "true"}
    tolerations = [{"operator": "Exists"}]
    spec = {"containers": [container], "nodeSelector": selector, "tolerations": tolerations}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": body}


PLUGIN_OBJECT = operand(PLUGIN, "device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0")
EXPORTER_OBJECT = operand(EXPORTER, "dcgm-exporter", "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.0")


@pytest.fixture
def nodes(control_plane: Cluster, namespace: str, kwok_cluster: NewKwokNodes) -> Iterator[tuple[str, ...]]:
    """Two nodes of the operator's, with its DaemonSets and the chart's."""
    made = kwok_cluster(2, labels=OPERATOR, resources={"nvidia.com/gpu": "8"})
    control_plane.client.create(ServiceAccount(metadata=ObjectMeta(name=OURS)), namespace=namespace)
    (ours,) = [
        each
        for each in chart_objects(namespace, "1.36.0", VALUES)
        if (each["kind"], each["metadata"]["name"]) == ("DaemonSet", OURS)
    ]
    text = "\n---\n".join(json.dumps(each) for each in (PLUGIN_OBJECT, EXPORTER_OBJECT, ours))
    control_plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    yield made.names
    control_plane.kubectl("delete", "daemonset", "-n", namespace, "--all", "--cascade=foreground")


def test_a_node_is_taken_over_and_given_back_by_labels_and_never_has_two_plugins(
    control_plane: Cluster, namespace: str, nodes: tuple[str, ...]
) -> None:
    first, second = nodes

    def programs() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in nodes}
        pods: list[Any] = list_in(control_plane.client, Pod, namespace)
        for each in pods:
            if each.metadata.deletionTimestamp is None and each.spec.nodeName in found:
                found[each.spec.nodeName].add(each.metadata.labels["app"])
        return found

    theirs = {PLUGIN, EXPORTER}
    until("the operator's pods", lambda: programs() == {first: theirs, second: theirs}, 60)

    listed = [json.loads(control_plane.kubectl("get", "node", name, "-o", "json")) for name in nodes]
    plugin = json.loads(control_plane.kubectl("get", "daemonset", PLUGIN, "-n", namespace, "-o", "json"))
    plan = plan_migration(FormerSystem.NVIDIA, listed, [], [plugin])
    (commands,) = [each.commands for each in plan.nodes if each.name == first]
    for command in commands:
        program, *words = command.split()
        assert program == "kubectl", command
        control_plane.kubectl(*words)
        assert not any({PLUGIN, OURS} <= found for found in programs().values())
    # The operator's exporter goes on: it reads the driver and offers no GPUs.
    until("the agent on the first node", lambda: programs() == {first: {EXPORTER, OURS}, second: theirs}, 60)

    control_plane.kubectl("label", "node", first, "milligpu.dev/managed-")
    until("no agent", lambda: programs()[first] == {EXPORTER}, 60)
    control_plane.kubectl("label", "node", first, "nvidia.com/gpu.deploy.device-plugin=true", "--overwrite")
    until("the operator's pods again", lambda: programs() == {first: theirs, second: theirs}, 60)
