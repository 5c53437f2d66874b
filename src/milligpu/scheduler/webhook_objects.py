"""What a cluster needs so that its API server asks the webhook, and asks it no more than it must.

What it is asked, and what if it is down:

- Pods that ask for GPUs in any dialect: they must be read, so without the webhook they are refused (Fail).
- All other pods are told that they see no GPU, and so are containers that join a running pod to look around;
  without the webhook they are admitted as they are (Ignore). A pod that asks for no GPU is never held up by us.
- Objects that make pods are looked at, so that the refusal comes at `kubectl apply`; without the webhook their pods
  are still refused one by one (Ignore).

Which pods ask is decided by the API server itself, by match conditions over names; a name that only looks like a
request is still read by the webhook, and then found to ask for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milligpu.model import names

PATH = "/admit"
CONFIGURATION = "milligpu"
"""The name of both configuration objects, for pods and for what makes pods."""
OPT_OUT = names.PREFIX + "admission"
"""A namespace with this label and the value "off" is none of the webhook's concern."""
# Where a cluster's own machinery runs, some of which must see all GPUs.
_SYSTEM = ("kube-system", "kube-public", "kube-node-lease")

_RESOURCES = (
    r"^(nvidia\.com/(v?gpu|priority)|gpu-|milligpu\.dev/"
    r"|tencent\.com/vcuda|aliyun\.com/gpu|deepomatic\.com/|bitfusion\.io/)"
)
_ANNOTATIONS = r"^(milligpu\.dev/|kubeshare/|sharedgpu/|gpu-fraction|gpu-memory$|nvidia\.com/container\.)"
_LABELS = r"^sharedgpu/"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the API server finds the webhook: a Service of the cluster, or an address."""

    namespace: str = "milligpu"
    service: str = "milligpu-webhook"
    port: int = 443
    url: str = ""
    """Scheme, host and port, in place of the service."""
    account: str = "milligpu-scheduler"
    """The service account, in the same namespace, under which it runs SharePods as pods."""

    def client_config(self) -> dict[str, Any]:
        """As configurations have it, without the authority, which the webhook writes itself."""
        if self.url:
            return {"url": self.url.rstrip("/") + PATH}
        service = {"namespace": self.namespace, "name": self.service, "path": PATH, "port": self.port}
        return {"service": service}


def objects(target: Target) -> list[dict[str, Any]]:
    """The configurations, SharePods' definition, and two rules for what nobody, or only we, may do."""
    return [_mutating(target), _validating(target), *_fixed_once_read(), *_only_sharepods_pods(target), sharepods()]


def _mutating(target: Target) -> dict[str, Any]:
    asks = _asks("object")
    # Other webhooks may put containers into a pod after us.
    again = {"reinvocationPolicy": "IfNeeded"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            {**_webhook(target, "gpus", asks, "Fail"), "rules": [_PODS], **again},
            {**_webhook(target, "others", f"!({asks})", "Ignore"), "rules": [_PODS], **again},
            {**_webhook(target, "debug", "true", "Ignore"), "rules": [_EPHEMERAL], **again},
        ],
    }


def _validating(target: Target) -> dict[str, Any]:
    template = "has(object.spec.template) ? object.spec.template : object"
    makes = f"has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : {template}"
    asks = f"[{makes}].exists(pod, {_asks('pod')})"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [_webhook(target, "workloads", asks, "Ignore") | {"rules": _WORKLOADS}],
    }


def _webhook(target: Target, name: str, condition: str, down: str) -> dict[str, Any]:
    elsewhere = [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*_SYSTEM, target.namespace]},
        {"key": OPT_OUT, "operator": "NotIn", "values": ["off"]},
    ]
    return {
        "name": f"{name}.milligpu.dev",
        "clientConfig": target.client_config(),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": down,
        # A webhook that hangs must not hold up those who do not need it.
        "timeoutSeconds": 5 if down == "Fail" else 2,
        "namespaceSelector": {"matchExpressions": elsewhere},
        "matchConditions": [{"name": "asks", "expression": condition}],
    }


_PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "Namespaced",
}
_EPHEMERAL = {**_PODS, "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]}
_WORKLOADS: list[dict[str, Any]] = [
    {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": kinds}
    for group, kinds in (
        ("apps", ["deployments", "replicasets", "statefulsets", "daemonsets"]),
        ("batch", ["jobs", "cronjobs"]),
        ("kubeshare.nthu", ["sharepods"]),
    )
]


def _asks(pod: str) -> str:
    """CEL: whether anything in a pod has a name that some dialect asks with."""
    return (
        f"{_named(f'{pod}.metadata', 'annotations', _ANNOTATIONS, within=pod)}"
        f" || {_named(f'{pod}.metadata', 'labels', _LABELS, within=pod)}"
        f" || {_containers(f'{pod}.spec', 'containers')} || {_containers(f'{pod}.spec', 'initContainers')}"
    )


def _containers(spec: str, key: str) -> str:
    limits, requests = (_named("c.resources", part, _RESOURCES) for part in ("limits", "requests"))
    words = " || ".join(
        f"(has(c.{part}) && c.{part}.exists(w, w.contains('bitfusion')))" for part in ("command", "args")
    )
    return (
        f"(has({spec}.{key}) && {spec}.{key}.exists(c, (has(c.resources) && ({limits} || {requests})) || {words}))"
    )


def _named(parent: str, key: str, pattern: str, *, within: str = "") -> str:
    there = f"has({parent}) && " if within else ""
    # A grant is no request: whoever may write one is decided elsewhere, webhook or not.
    asks = f"k.matches(r'{pattern}') && k != '{names.GRANT}'"
    return f"({there}has({parent}.{key}) && {parent}.{key}.exists(k, {asks}))"


def _fixed_once_read() -> list[dict[str, Any]]:
    """Quotas were counted by what these say: they stay as they were admitted."""
    keys = ", ".join(f"'{key}'" for key in (names.SHARES, names.DIALECT))

    def value(pod: str) -> str:
        notes = f"{pod}.metadata.annotations"
        return f"(has({notes}) && k in {notes} ? {notes}[k] : '')"

    validation = {
        "expression": f"[{keys}].all(k, {value('object')} == {value('oldObject')})",
        "message": f"{names.SHARES} and {names.DIALECT} stay as they were at admission",
    }
    return _policy("milligpu-requests", {**_PODS, "operations": ["UPDATE"]}, validation)


def _only_sharepods_pods(target: Target) -> list[dict[str, Any]]:
    """Our account may create pods, because SharePods become pods; this holds it to those."""
    validation = {
        "expression": (
            "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, "
            "o.kind == 'SharePod' && o.apiVersion.startsWith('kubeshare.nthu/') && o.?controller.orValue(false))"
        ),
        "message": f"{target.account} creates the pods of SharePods, and no others",
    }
    ours = f"request.userInfo.username == 'system:serviceaccount:{target.namespace}:{target.account}'"
    return _policy("milligpu-sharepods", _PODS, validation, [{"name": "ours", "expression": ours}])


def _policy(
    name: str, rules: Mapping[str, Any], validation: dict[str, str], conditions: Sequence[dict[str, str]] = ()
) -> list[dict[str, Any]]:
    """A policy and its binding; it needs no webhook, and holds while ours is down."""
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rules]},
        "matchConditions": list(conditions),
        "validations": [validation],
    }
    group = "admissionregistration.k8s.io/v1"
    bound = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": group,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": bound,
        },
    ]


def sharepods() -> dict[str, Any]:
    """KubeShare 1's own kind, for clusters that do not have it: a pod's spec, and the pod's status."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    columns = [
        {"name": "Phase", "type": "string", "jsonPath": ".status.podStatus.phase"},
        {"name": "GPU", "type": "string", "jsonPath": ".status.boundDeviceID"},
        {"name": "Message", "type": "string", "jsonPath": ".status.podStatus.message"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    version: dict[str, Any] = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    kinds = {"kind": "SharePod", "listKind": "SharePodList", "plural": "sharepods", "singular": "sharepod"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "sharepods.kubeshare.nthu"},
        "spec": {
            "group": "kubeshare.nthu",
            "scope": "Namespaced",
            "names": {**kinds, "shortNames": ["shp"]},
            "versions": [version],
        },
    }
