"""RBAC: what the scheduler's and the agent's service accounts may do; `milligpu doctor` checks the same table."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from milligpu.manifests.webhook_configuration import CONFIGURATION
from milligpu.model.gpu_service import ScaleKind
from milligpu.model.names import GROUP_VERSION

SCHEDULER = "milligpu-scheduler"
AGENT = "milligpu-agent"
GPU_SERVER = "milligpu-gpu-server"
"""The service account with which a GPU server reports to the cluster and checks its pods' tokens."""
UNINSTALL = "milligpu-uninstall"
"""The service account of the hooks that `helm uninstall` runs; it exists only meanwhile."""
TEST_POD = "milligpu-test-share"
"""The pod of `helm test`."""
KUBE_SCHEDULER_LEASE = "milligpu-kube-scheduler"
"""The leader Lease of the kube-scheduler next to the scheduler service, which the service follows."""
NODE_LEASES = "kube-node-lease"
"""The namespace where kubelets renew their Leases."""
# To see that the kubelet in a VM answers again, with a clock in step.
_NODE_LEASE_RULES: list[dict[str, Any]] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
]
_GROUP = GROUP_VERSION.partition("/")[0]

# To read the cluster state, bind, nominate, evict, write events, the conditions of nodes and classes and the status
# of queues, and to remove the gates of queues: an admission policy lets it patch nothing else of a pod. The
# scheduler can create only Bindings, evictions and events, delete nothing else, and read no secret.
_CLUSTER_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/binding", "pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status", "nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": [_GROUP],
        "resources": ["gpuclasses", "gpuqueues", "gpulayouts", "gpucalendars", "gpuservers", "gpuservices"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": [_GROUP],
        "resources": [
            *("gpuclasses/status", "gpuqueues/status", "gpulayouts/status", "gpucalendars/status"),
            "gpuservices/status",
        ],
        "verbs": ["patch"],
    },
    # To change the number of pods of a GpuService's target, and nothing else of it; and to see who else does.
    {
        "apiGroups": ["apps"],
        "resources": [f"{kind.plural}/scale" for kind in ScaleKind],
        "verbs": ["get", "patch"],
    },
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    # To remove the gates of queues from pods, and to write the present layout onto nodes and remove their startup
    # taint; admission policies allow no other change.
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["patch"]},
]

# With admission: to write its CA into its own configurations, to run SharePods as pods, and to read what a label of
# namespaces says about `bitfusion run`.
_WEBHOOK_RULES: list[dict[str, Any]] = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        "resourceNames": [CONFIGURATION],
        "verbs": ["get", "patch"],
    },
    {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods", "sharepods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
]

AGENT_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status", "nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
]
"""The agent reads its pods' grants, writes its node's inventory and slots, and fails pods that never start.

Admission policies hold it to its own node. RBAC cannot hold its reads to it: see docs/agent.md.
"""


SERVER_RULES: list[dict[str, Any]] = [
    {"apiGroups": [_GROUP], "resources": ["gpuservers"], "verbs": ["get", "create", "patch"]},
    {"apiGroups": [_GROUP], "resources": ["gpuservers/status"], "verbs": ["patch"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
]
"""A GPU server writes its own GpuServer, asks whose a token is, and reads the grant of that pod."""


def required_permissions(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield each single permission of the rules: API group, resource, subresource and verb."""
    for rule in rules:
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            kind, _, subresource = resource.partition("/")
            yield group, kind, subresource, verb


def service_accounts(namespace: str, *, webhook: bool) -> list[dict[str, Any]]:
    """Return the service accounts of scheduler and agent with their roles; `webhook`: the scheduler serves it."""
    rules = _CLUSTER_RULES + _WEBHOOK_RULES if webhook else _CLUSTER_RULES
    return [
        *_account(namespace, SCHEDULER, rules, _own_rules(SCHEDULER, KUBE_SCHEDULER_LEASE)),
        *_account(namespace, AGENT, AGENT_RULES, []),
        *_account(namespace, GPU_SERVER, SERVER_RULES, []),
        *_role("", {"name": SCHEDULER, "namespace": NODE_LEASES}, _NODE_LEASE_RULES, namespace),
        _READERS,
        _EDITORS,
    ]


# To keep the classes of the chart's values in the cluster. Only an installation that declares classes needs it.
_CLASS_RULES: list[dict[str, Any]] = [
    {"apiGroups": [_GROUP], "resources": ["gpuclasses"], "verbs": ["create", "patch", "delete"]},
]


def declared_classes_role(namespace: str) -> list[dict[str, Any]]:
    """Return the role with which the scheduler service writes declared classes, and its binding."""
    return _role("Cluster", {"name": "milligpu-classes"}, _CLASS_RULES, namespace, account=SCHEDULER)


# Events on pods and nodes, the removal of what others wrote into Node objects, and of the gates of queues.
_UNINSTALL_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [_GROUP], "resources": ["gpuclasses"], "verbs": ["list", "delete"]},
]
_UNINSTALL_OWN_RULES: list[dict[str, Any]] = [
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "resourceNames": [TEST_POD], "verbs": ["delete"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [SCHEDULER, KUBE_SCHEDULER_LEASE],
        "verbs": ["delete"],
    },
]


def uninstall_account(namespace: str) -> list[dict[str, Any]]:
    """Return the service account that removes what is left, with its roles."""
    return _account(namespace, UNINSTALL, _UNINSTALL_RULES, _UNINSTALL_OWN_RULES)


_READERS: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "milligpu-view",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"},
    },
    "rules": [
        {
            "apiGroups": [_GROUP],
            "resources": ["gpuclasses", "gpuqueues", "gpulayouts", "gpucalendars", "gpuservers", "gpuservices"],
            "verbs": ["get", "list", "watch"],
        }
    ],
}
"""Adds all kinds of objects to what Kubernetes' own role `view` may read."""

_EDITORS: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "milligpu-edit",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"},
    },
    "rules": [
        {
            "apiGroups": [_GROUP],
            "resources": ["gpuservices"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        }
    ],
}
"""Lets who may write Deployments of a namespace, by Kubernetes' roles `edit` and `admin`, write services there."""


def _own_rules(*leases: str) -> list[dict[str, Any]]:
    """Return the rules for leader Leases, in its own namespace. RBAC cannot restrict `create` to a name."""
    group = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [{**group, "verbs": ["create"]}, {**group, "verbs": ["get", "update"], "resourceNames": list(leases)}]


def _account(
    namespace: str, name: str, cluster: list[dict[str, Any]], own: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        *_role("Cluster", {"name": name}, cluster, namespace),
    ]
    if own:
        found += _role("", {"name": name, "namespace": namespace}, own, namespace)
    return found


def _role(
    scope: str, metadata: dict[str, str], rules: list[dict[str, Any]], namespace: str, account: str = ""
) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    name = metadata["name"]
    return [
        {"apiVersion": f"{group}/v1", "kind": f"{scope}Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{scope}RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": f"{scope}Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account or name, "namespace": namespace}],
        },
    ]
