"""The objects by which the API server calls the webhook, and for what.

- Pods that request GPUs in any dialect must be read. While the webhook is down they are refused (Fail).
- In all other pods, and in ephemeral containers, GPUs are hidden. Admission policies of the API server do it
  (`mutating_policies`); before Kubernetes 1.36 the webhook does, and while it is down they are admitted unchanged
  (Ignore), each after a call that fails.
- Objects that create pods are checked, so that `kubectl apply` shows mistakes. While the webhook is down they are
  admitted (Ignore), and their invalid pods are refused one by one.
- Objects that create pods and name a class by its resource are changed, because the API server refuses that
  resource. While the webhook is down they are refused (Fail).
- Objects that create pods get the name of the user who created them, if the cluster has queues. While the webhook
  is down they are admitted without (Ignore), and their pods count for their namespace.
- Classes, queues, layouts and calendars are checked before they are stored. While the webhook is down none can be
  changed (Fail).

The API server itself decides which pods request GPUs, by match conditions over names. A name that only looks like a
request reaches the webhook, which then reads no request.
"""

from dataclasses import dataclass
from typing import Any

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.class_templates import LAST_APPLIED
from milligpu.dialects.registry import DialectRegistry
from milligpu.model import names
from milligpu.model.gpu_class import RESOURCE_PREFIX

PATH = "/admit"
CONFIGURATION = "milligpu"
"""The name of both configuration objects, for pods and for objects that create pods."""
OPT_OUT = names.PREFIX + "admission"
"""A label of namespaces: with the value "off" the API server never calls the webhook for them."""
CONTROLLERS = "system:serviceaccount:kube-system:"
"""Beginning of the accounts that create pods from users' templates."""
# Components of the cluster run here, and some of them must see all GPUs.
_SYSTEM = ("kube-system", "kube-public", "kube-node-lease")
NVIDIA_NAMESPACES = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
"""Where NVIDIA's documentation installs its own programs: they request no GPU, and must see all of them."""


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """Where the API server finds the webhook: a Service of the cluster, or a URL."""

    namespace: str = "milligpu"
    service: str = "milligpu-webhook"
    port: int = 443
    url: str = ""
    """Scheme, host and port, instead of the Service."""
    account: str = "milligpu-scheduler"
    """The service account, in the same namespace, that creates the pods of SharePods."""

    def client_config(self) -> dict[str, Any]:
        """Return `clientConfig` without the CA, which the webhook writes itself."""
        if self.url:
            return {"url": self.url.rstrip("/") + PATH}
        service = {"namespace": self.namespace, "name": self.service, "path": PATH, "port": self.port}
        return {"service": service}


def webhook_configuration(
    target: WebhookAddress, known: DialectRegistry = KNOWN, *, hides_gpus: bool = False
) -> list[dict[str, Any]]:
    """Return the mutating and the validating configuration; `hides_gpus` where no admission policy does."""
    return [_mutating(target, known, hides_gpus), _validating(target, known)]


def _mutating(target: WebhookAddress, known: DialectRegistry, hides_gpus: bool) -> dict[str, Any]:
    asks = asks_for_gpus("object", known)
    # Other webhooks may add containers to a pod later.
    again = {"reinvocationPolicy": "IfNeeded"}
    theirs = {"namespaceSelector": namespace_selector(target.namespace, *NVIDIA_NAMESPACES)}
    hiding = [
        {**_webhook(target, "others", f"!({asks})", "Ignore"), "rules": [NEW_PODS], **again, **theirs},
        {**_webhook(target, "debug", "true", "Ignore"), "rules": [EPHEMERAL], **again, **theirs},
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            {**_webhook(target, "gpus", asks, "Fail"), "rules": [NEW_PODS], **again},
            *(hiding if hides_gpus else ()),
            {**_webhook(target, "templates", _names_class(), "Fail"), "rules": _TEMPLATES, **again},
            {**_webhook(target, "users", _by_user(known), "Ignore"), "rules": _TEMPLATES, **again},
        ],
    }


_TEMPLATE = (
    "has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : "
    "has(object.spec.template) ? object.spec.template : object"
)
"""CEL: the pod that an object makes."""


def _names_class() -> str:
    """CEL: whether a template has a class's resource, or had one when kubectl last applied another manifest."""
    pattern = f"^{RESOURCE_PREFIX}"
    containers = " || ".join(
        f"(has(pod.spec.{key}) && pod.spec.{key}.exists(c, has(c.resources) && "
        f"({_named('c.resources', 'limits', pattern)} || {_named('c.resources', 'requests', pattern)})))"
        for key in ("containers", "initContainers")
    )

    def applied(thing: str) -> str:
        return f"({thing}.?metadata.?annotations[?'{LAST_APPLIED}'].orValue(''))"

    had = (
        f"oldObject != null && {applied('oldObject')}.contains('{RESOURCE_PREFIX}') && "
        f"{applied('oldObject')} != {applied('object')}"
    )
    return f"[{_TEMPLATE}].exists(pod, {containers}) || ({had})"


def _by_user(known: DialectRegistry) -> str:
    """CEL: whether a user, and no controller, writes a template that requests GPUs."""
    asks = f"[{_TEMPLATE}].exists(pod, {asks_for_gpus('pod', known)})"
    return f"!request.userInfo.username.startsWith('{CONTROLLERS}') && {asks}"


def _validating(target: WebhookAddress, known: DialectRegistry) -> dict[str, Any]:
    asks = f"[{_TEMPLATE}].exists(pod, {asks_for_gpus('pod', known)})"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [
            _webhook(target, "workloads", asks, "Ignore") | {"rules": _WORKLOADS},
            _webhook(target, "classes", "true", "Fail") | {"rules": [_objects("gpuclasses")]},
            _webhook(target, "queues", "true", "Fail") | {"rules": [_objects("gpuqueues")]},
            _webhook(target, "layouts", "true", "Fail") | {"rules": [_objects("gpulayouts", "gpucalendars")]},
        ],
    }


def namespace_selector(namespace: str, *more: str) -> dict[str, Any]:
    """Return a selector of all namespaces but the system's, milligpu's own, `more`, and those that opted out."""
    except_in = [*_SYSTEM, namespace, *more]
    return {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": except_in},
            {"key": OPT_OUT, "operator": "NotIn", "values": ["off"]},
        ]
    }


def _webhook(target: WebhookAddress, name: str, condition: str, down: str) -> dict[str, Any]:
    return {
        "name": f"{name}.milligpu.dev",
        "clientConfig": target.client_config(),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": down,
        # A webhook that hangs must not delay pods that do not need it.
        "timeoutSeconds": 5 if down == "Fail" else 2,
        "namespaceSelector": namespace_selector(target.namespace),
        "matchConditions": [{"name": "asks", "expression": condition}],
    }


NEW_PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "Namespaced",
}
EPHEMERAL = {**NEW_PODS, "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]}
_WORKLOADS: list[dict[str, Any]] = [
    {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": kinds}
    for group, kinds in (
        ("apps", ["deployments", "replicasets", "statefulsets", "daemonsets"]),
        ("batch", ["jobs", "cronjobs"]),
        ("kubeshare.nthu", ["sharepods"]),
    )
]

_TEMPLATES = [rule for rule in _WORKLOADS if rule["resources"] != ["sharepods"]]


def _objects(*kinds: str) -> dict[str, Any]:
    """Writes of our own objects of these kinds."""
    return {
        "apiGroups": [names.GROUP_VERSION.partition("/")[0]],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [*kinds],
        "scope": "Cluster",
    }


def asks_for_gpus(pod: str, known: DialectRegistry) -> str:
    """Return a CEL expression: whether a pod has any name by which a dialect requests GPUs."""
    metadata = f"{pod}.metadata"
    return (
        f"{_named(metadata, 'annotations', known.annotation_pattern, within=pod)}"
        f" || {_named(metadata, 'labels', known.label_pattern, within=pod)}"
        f" || {_containers(f'{pod}.spec', 'containers', known)}"
        f" || {_containers(f'{pod}.spec', 'initContainers', known)}"
    )


def _containers(spec: str, key: str, known: DialectRegistry) -> str:
    limits, requests = (_named("c.resources", part, known.resource_pattern) for part in ("limits", "requests"))
    words = " || ".join(
        f"(has(c.{part}) && c.{part}.exists(w, w.contains('{word}')))"
        for part in ("command", "args")
        for word in known.command_words
    )
    return (
        f"(has({spec}.{key}) && {spec}.{key}.exists(c, (has(c.resources) && ({limits} || {requests})) || {words}))"
    )


def _named(parent: str, key: str, pattern: str, *, within: str = "") -> str:
    there = f"has({parent}) && " if within else ""
    # A grant is no request; an admission policy says who may write it.
    asks = " && ".join((f"k.matches(r'{pattern}')", *(f"k != '{each}'" for each in names.GRANTED)))
    return f"({there}has({parent}.{key}) && {parent}.{key}.exists(k, {asks}))"
