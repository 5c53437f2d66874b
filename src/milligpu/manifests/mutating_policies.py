"""MutatingAdmissionPolicies: the API server itself hides GPUs from pods that request none, and drops copied grants.

They need `admissionregistration.k8s.io/v1` of Kubernetes 1.36. Where it is not served, the webhook does the same.
With them no webhook is called for a pod that requests no GPU, so such a pod never waits for the scheduler service.
"""

from typing import Any

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.normal import VISIBLE, VOID
from milligpu.dialects.registry import DialectRegistry
from milligpu.manifests.webhook_configuration import (
    EPHEMERAL,
    NEW_PODS,
    NVIDIA_NAMESPACES,
    WebhookAddress,
    asks_for_gpus,
    namespace_selector,
)
from milligpu.model import names

API = "admissionregistration.k8s.io/v1"
POLICY, BINDING = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
SINCE = (1, 36)
"""The first version of Kubernetes that serves them."""


def mutating_policies(target: WebhookAddress, known: DialectRegistry = KNOWN) -> list[dict[str, Any]]:
    """Return the policies and their bindings; `target` is the webhook that reads the pods that request GPUs."""
    return [
        *_policy(
            "gpus-hidden.milligpu.dev",
            NEW_PODS,
            namespace_selector(target.namespace, *NVIDIA_NAMESPACES),
            f"!({asks_for_gpus('object', known)})",
            f"{_hide('containers')} + {_hide('initContainers')}",
        ),
        *_policy(
            "gpus-hidden-from-debug.milligpu.dev",
            EPHEMERAL,
            namespace_selector(target.namespace, *NVIDIA_NAMESPACES),
            "true",
            _hide("ephemeralContainers", "oldObject.spec.?ephemeralContainers.orValue([])"),
        ),
        *_policy(
            "copied-grants.milligpu.dev",
            NEW_PODS,
            namespace_selector(target.namespace),
            f"'{names.GRANT}' in object.metadata.?annotations.orValue({{}})",
            _strip(names.GRANT),
        ),
        *_policy(
            "copied-gpu-servers.milligpu.dev",
            NEW_PODS,
            namespace_selector(target.namespace),
            f"'{names.GPU_SERVER}' in object.metadata.?annotations.orValue({{}})",
            _strip(names.GPU_SERVER),
        ),
        *_policy(
            "copied-services.milligpu.dev",
            NEW_PODS,
            namespace_selector(target.namespace),
            f"'{names.SERVICE}' in object.metadata.?annotations.orValue({{}})",
            _strip(names.SERVICE),
        ),
        *_policy(
            "suspended-with-their-node.milligpu.dev",
            NEW_PODS,
            namespace_selector(target.namespace),
            "true",
            _tolerate_suspension(),
        ),
    ]


def _tolerate_suspension() -> str:
    """CEL: let a pod that is to be suspended with its node's VM tolerate that, if it or its namespace says so.

    The API server itself has given it tolerations of a kubelet that is away, for five minutes; these are replaced.
    """
    said = "metadata.?annotations[?'" + names.WHEN_SUSPENDED + "']"
    keep = f"object.{said}.orValue(namespaceObject.{said}.orValue('drain')) == 'keep'"
    away = [names.SUSPENDED, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    keys, there = f"{away}", "object.spec.?tolerations.orValue([])"

    def toleration(key: str) -> str:
        return f"dyn({{'key': string({key}), 'operator': 'Exists', 'effect': 'NoExecute'}})"

    ours = f"t.?key.orValue('') in {keys} && t.?effect.orValue('') in ['', 'NoExecute']"
    place = "'/spec/tolerations/' + string(i)"
    replaced = f"JSONPatch{{op: 'replace', path: {place}, value: {toleration('t.key')}}}"
    lacks = f"!{there}.exists(t, t.?key.orValue('') == k && t.?effect.orValue('') in ['', 'NoExecute'])"
    added = f"JSONPatch{{op: 'add', path: '/spec/tolerations/-', value: {toleration('k')}}}"
    first = "JSONPatch{op: 'add', path: '/spec/tolerations', value: dyn([])}"
    return (
        f"!({keep}) ? [] : (size({there}) == 0 ? [{first}] : []) + "
        f"{there}.transformList(i, t, {ours}, {replaced}) + {keys}.filter(k, {lacks}).map(k, {added})"
    )


def _hide(key: str, before: str = "[]") -> str:
    """CEL: hide all GPUs from containers that request no device of NVIDIA's; those that were there `before` stay.

    A pod may have a variable twice, or take it from elsewhere: each of these is replaced. Other variables are not
    touched, because Kubernetes 1.37 cannot write objects of a pod back in a JSON patch.
    """
    env, hidden = "c.?env.orValue([])", f"{{'name': '{VISIBLE}', 'value': '{VOID}'}}"
    path = f"'/spec/{key}/' + string(i) + '/env'"
    shown = f"e.name == '{VISIBLE}' && e.?value.orValue('') != '{VOID}'"
    replaced = f"JSONPatch{{op: 'replace', path: {path} + '/' + string(j), value: dyn({hidden})}}"
    added = f"JSONPatch{{op: 'add', path: {path} + '/-', value: dyn({hidden})}}"
    first = f"JSONPatch{{op: 'add', path: {path}, value: dyn([{hidden}])}}"
    patches = (
        f"size({env}) == 0 ? [{first}] : {env}.exists(e, e.name == '{VISIBLE}') ? "
        f"{env}.transformList(j, e, {shown}, {replaced}) : [{added}]"
    )
    device = "c.?resources.?limits.orValue({}).exists(k, k.startsWith('nvidia.com/'))"
    wanted = f"!({device}) && !{before}.exists(o, o.name == c.name)"
    return f"object.spec.?{key}.orValue([]).transformList(i, c, {wanted}, {patches}).flatten()"


def _strip(annotation: str) -> str:
    """CEL: remove an annotation."""
    return f"[JSONPatch{{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('{annotation}')}}]"


def _policy(
    name: str, rule: dict[str, Any], namespaces: dict[str, Any], condition: str, mutation: str
) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": API,
            "kind": POLICY,
            "metadata": {"name": name},
            "spec": {
                # Nothing is called, so it fails only for a pod that was made for it to fail.
                "failurePolicy": "Fail",
                # Webhooks may add containers to a pod later.
                "reinvocationPolicy": "IfNeeded",
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": namespaces},
                "matchConditions": [{"name": "matches", "expression": condition}],
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": mutation}}],
            },
        },
        {"apiVersion": API, "kind": BINDING, "metadata": {"name": name}, "spec": {"policyName": name}},
    ]
