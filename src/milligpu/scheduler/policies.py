"""Who may write what the system trusts: grants are the scheduler's, an inventory is its node's agent's.

ValidatingAdmissionPolicies, judged by the API server itself: nothing of ours has to run for them to hold. There are
several ways to an annotation of a pod, and each is closed: creating it, updating it or its status, and Bindings of
both kinds, whose annotations the API server copies to the pod.
"""

from typing import Any

from milligpu.model import names

GRANTS = "grants.milligpu.dev"
INVENTORIES = "inventories.milligpu.dev"


def policies(namespace: str, scheduler: str, agent: str) -> list[dict[str, Any]]:
    """Both policies and their bindings; `scheduler` and `agent` are service accounts in the namespace."""
    account = f"system:serviceaccount:{namespace}:"
    return [
        *_policy(GRANTS, ["pods", "pods/*", "bindings"], *_grants(account + scheduler)),
        *_policy(INVENTORIES, ["nodes", "nodes/*"], *_inventories(account + agent)),
    ]


def _grants(account: str) -> tuple[str, str]:
    """A new pod has no grant, whoever creates it: the scheduler's account makes the pods of SharePods, too."""
    new = "(request.operation == 'CREATE' && request.resource.resource == 'pods' && request.subResource == '')"
    return (
        f"{_unchanged(names.GRANT)} || (request.userInfo.username == '{account}' && !{new})",
        f"only {account} may write or remove the annotation {names.GRANT}",
    )


def _inventories(account: str) -> tuple[str, str]:
    """A service account's token names the node of the pod that it was given to."""
    node = "authentication.kubernetes.io/node-name"
    mine = (
        f"request.userInfo.username == '{account}' && has(request.userInfo.extra) && "
        f"'{node}' in request.userInfo.extra && object.metadata.name in request.userInfo.extra['{node}']"
    )
    return (
        f"{_unchanged(names.INVENTORY)} || ({mine})",
        f"only {account} on the node itself may write or remove the annotation {names.INVENTORY}",
    )


def _unchanged(annotation: str) -> str:
    def value(thing: str) -> str:
        return f"({thing}.?metadata.?annotations[?'{annotation}'].orValue(''))"

    # A request to create has no old object; a Binding has no old one either, and brings annotations of its own.
    before = f"(oldObject == null ? '' : {value('oldObject')})"
    after = f"(object == null ? '' : {value('object')})"
    return f"{after} == {before}"


def _policy(name: str, resources: list[str], expression: str, message: str) -> list[dict[str, Any]]:
    rule = {"apiGroups": [""], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": resources}
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
                "validations": [{"expression": expression, "message": message, "reason": "Forbidden"}],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]
