"""All that an installation can leave in a cluster and on its nodes, to be compared before and after."""

import json
from pathlib import Path
from typing import Any

from devcluster.cluster import Cluster
from devcluster.node import Node

# Made by the cluster itself, or following from CRDs.
_OF_THE_CLUSTER = {"componentstatuses", "nodes", "apiservices.apiregistration.k8s.io"}
_MANY = {"events", "events.events.k8s.io"}


def traces(cluster: Cluster) -> dict[str, Any]:
    """Cluster-wide objects, Leases, what Node objects say beside their kubelet's words, and files on nodes."""
    listed = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    return {
        "objects": _names(cluster, "--namespaced=false", _OF_THE_CLUSTER),
        "leases": set(cluster.kubectl("get", "leases", "-A", "-o", "name").split()),
        "nodes": {node["metadata"]["name"]: _said(node) for node in listed},
        "files": {node.name: _files(node) for node in cluster.nodes},
        "mounts": {node.name: _mounts(node) for node in cluster.nodes},
    }


def in_namespace(cluster: Cluster, namespace: str) -> set[str]:
    """All objects of a namespace but events."""
    return _names(cluster, "--namespaced=true", _MANY, f"--namespace={namespace}")


def _names(cluster: Cluster, scope: str, skipped: set[str], *options: str) -> set[str]:
    kinds = cluster.kubectl("api-resources", scope, "--verbs=list", "-o", "name").split()
    wanted = ",".join(sorted(set(kinds) - skipped))
    return set(cluster.kubectl("get", wanted, "-o", "name", "--ignore-not-found", *options).split())


def _said(node: dict[str, Any]) -> dict[str, Any]:
    meta = node["metadata"]
    return {
        "annotations": set(meta.get("annotations", {})),
        "labels": meta["labels"],
        "taints": node["spec"].get("taints", []),
        "conditions": {each["type"] for each in node["status"]["conditions"]},
        "finalizers": meta.get("finalizers", []),
    }


def _files(node: Node) -> set[Path]:
    """What is in the directories in which programs of a node keep their files, two levels deep."""
    places = (node.folder / "run", node.folder / "var/lib", node.cdi_dir, node.device_plugins_dir)
    found = {path.relative_to(node.folder) for place in places for path in place.iterdir()}
    # The kubelet keeps its list of allocated devices here, and the network its addresses.
    return found - {Path("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"), Path("var/lib/cni")}


def _mounts(node: Node) -> list[str]:
    found = node.run_inside("cat", "/proc/self/mountinfo").stdout.splitlines()
    return [line for line in found if "milligpu/containers" in line or "/milligpu/program" in line]
