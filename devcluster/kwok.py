"""Nodes that exist only in the API: KWOK plays the kubelet for any number of them.

The scheduler, the controllers and our own code cannot tell them from real nodes. Their pods are "Running" without a
container; a test that needs a container uses a real node.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lightkube import Client
from lightkube.models.core_v1 import NodeSpec, NodeStatus, Taint, Toleration
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule
from lightkube.resources.core_v1 import Node

from devcluster.api import list_all
from devcluster.pki import Pki
from devcluster.process import Process
from devcluster.record import Record
from devcluster.wait import until

STAGES = Path(__file__).with_name("kwok-stages.yaml")
MANAGED = "kwok.x-k8s.io/node"
TAINT = Taint(key=MANAGED, value="fake", effect="NoSchedule")
TOLERATION = Toleration(key=MANAGED, operator="Exists", effect="NoSchedule")
READY_DEADLINE_S = 60.0
# Concurrent requests while nodes are created; the API server's limits allow far more.
CONCURRENCY = 8
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110"}

RULES = [
    PolicyRule(apiGroups=[""], resources=["nodes"], verbs=["get", "list", "watch"]),
    PolicyRule(apiGroups=[""], resources=["nodes/status", "pods/status"], verbs=["patch", "update"]),
    PolicyRule(apiGroups=[""], resources=["pods"], verbs=["get", "list", "watch", "patch", "update", "delete"]),
    PolicyRule(apiGroups=[""], resources=["events"], verbs=["create", "patch", "update"]),
    PolicyRule(
        apiGroups=["coordination.k8s.io"],
        resources=["leases"],
        verbs=["get", "list", "watch", "create", "patch", "update"],
    ),
]
"""Permissions of the controller. It has an identity of its own, so that it does not hide missing ones of others."""


@dataclass(frozen=True)
class KwokNodes:
    """The nodes of one call, and what a pod needs to be scheduled on one of them."""

    names: tuple[str, ...]
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]


def controller(record: Record, pki: Pki, binaries: Path) -> Process:
    """Create the process that keeps the nodes Ready and advances their pods."""
    plan = record.plan
    flags = {
        "kubeconfig": str(pki.kwok),
        "config": str(STAGES),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": f"{MANAGED}=fake",
        "node-lease-duration-seconds": "40",
        # No server listens there; requesting logs of such a node fails on this machine and not on another one.
        "node-ip": plan.unused,
        "cidr": plan.pods(0),
    }
    return Process(
        "kwok",
        [str(binaries / "kwok"), *(f"--{flag}={value}" for flag, value in flags.items())],
        cgroup=record.cgroup,
        log=record.folder / "logs" / "kwok.log",
    )


def create_nodes(
    client: Client,
    controller: Process,
    names: tuple[str, ...],
    *,
    resources: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Callable[[str], Mapping[str, str]],
    taints: tuple[Taint, ...],
) -> None:
    """Create the nodes, each with its own annotations, and wait until the controller has made all Ready."""
    capacity = {**CAPACITY, **resources}

    def create(name: str) -> None:
        metadata = ObjectMeta(
            name=name,
            labels={
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "type": "kwok",
                **labels,
            },
            annotations={MANAGED: "fake", **annotations(name)},
        )
        status = NodeStatus(capacity=capacity, allocatable=capacity)
        client.create(Node(metadata=metadata, spec=NodeSpec(taints=list(taints)), status=status))

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(create, names))
    wanted = set(names)

    def all_ready() -> bool:
        controller.must_run()
        return wanted <= _ready(client)

    until(
        f"{len(names)} KWOK nodes to be Ready",
        all_ready,
        READY_DEADLINE_S,
        every_s=max(0.1, len(names) / 2000),  # listing thousands of nodes is expensive
        last_state=lambda: f"not Ready: {sorted(wanted - _ready(client))[:10]}\n{controller.tail(10)}",
    )


def delete_nodes(client: Client, names: tuple[str, ...]) -> None:
    def delete(name: str) -> None:
        client.delete(Node, name)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(delete, names))


def readiness(client: Client) -> dict[str, bool]:
    """Read for every node of the cluster whether it is Ready."""
    found: dict[str, bool] = {}
    for node in list_all(client, Node):
        conditions = (node.status.conditions if node.status else None) or []
        name = (node.metadata.name if node.metadata else None) or ""
        found[name] = any(each.type == "Ready" and each.status == "True" for each in conditions)
    return found


def _ready(client: Client) -> set[str]:
    return {name for name, ready in readiness(client).items() if ready}
