"""The cluster state, as commands read it: by listing what the scheduler service watches."""

from typing import Any

from milligpu.cluster.read import read_cluster
from milligpu.cluster.state import ClusterState
from milligpu.kube import fetch
from milligpu.model import names
from milligpu.wire.kubernetes import KubeNode, KubePod


def read_state(client: Any) -> ClusterState:
    """List nodes, pods, and classes if a pod names one."""
    return state_of(client, fetch.list_nodes(client), fetch.list_pods(client))


def state_of(client: Any, nodes: list[KubeNode], pods: list[KubePod]) -> ClusterState:
    """As `read_state`, of nodes and pods that were listed before."""
    named = any(names.CLASS in (pod.metadata.annotations or {}) for pod in pods)
    return read_cluster(nodes, pods, fetch.list_classes(client) if named else (), fetch.list_servers(client))
