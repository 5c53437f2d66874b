"""What a cluster needs before the service can run: a namespace, accounts with the least they need, policies."""

from typing import Any

from milligpu.scheduler.policies import policies
from milligpu.scheduler.webhook_objects import CONFIGURATION, Target, objects

SCHEDULER = "milligpu-scheduler"
AGENT = "milligpu-agent"


def manifests(namespace: str, webhook: Target | None = None) -> list[dict[str, Any]]:
    """Everything but the workloads, in an order in which it can be applied; `webhook` is where admission is."""
    rules = _CLUSTER_RULES if webhook is None else _CLUSTER_RULES + _WEBHOOK_RULES
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        *_account(namespace, SCHEDULER, rules, _own_rules(SCHEDULER)),
        *_account(namespace, AGENT, _AGENT_RULES, []),
        *policies(namespace, SCHEDULER, AGENT),
        *([] if webhook is None else objects(webhook)),
    ]


# What the books are made of; binding, nominating and telling. Nothing can be created but Bindings and events,
# nothing can be deleted, and no secret can be read.
_CLUSTER_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
]

# With admission: trusting its own certificate in its own configuration, and running SharePods as pods.
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
]

# An agent reads its pods' grants and writes its node's inventory; the policy holds it to its own node. It evicts
# pods that cannot start where they are.
_AGENT_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
]


def _own_rules(lease: str) -> list[dict[str, Any]]:
    """In its own namespace: leadership. A name cannot be given to what does not exist yet."""
    group = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return [{**group, "verbs": ["create"]}, {**group, "verbs": ["get", "update"], "resourceNames": [lease]}]


def _account(
    namespace: str, name: str, cluster: list[dict[str, Any]], own: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        *_grant_rights("Cluster", {"name": name}, cluster, namespace),
    ]
    if own:
        found += _grant_rights("", {"name": name, "namespace": namespace}, own, namespace)
    return found


def _grant_rights(
    scope: str, metadata: dict[str, str], rules: list[dict[str, Any]], namespace: str
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
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
