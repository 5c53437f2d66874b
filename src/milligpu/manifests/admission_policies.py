"""ValidatingAdmissionPolicies: who may write grants and inventories, and what our own service accounts may write.

The API server itself enforces them, so they hold while no part of milligpu runs. An annotation of a pod can be
written in several ways, and the policies cover each: creating the pod, updating it or its status, and Bindings of
both kinds, whose annotations the API server copies to the pod.

RBAC lets every agent patch every Node object and the status of every pod. The policies hold it to the node that its
token names, and to what an agent writes there, so that a stolen token is of use on its own node only.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from milligpu.manifests.webhook_configuration import CONTROLLERS, NEW_PODS, WebhookAddress
from milligpu.model import names
from milligpu.model.gpu_service import ScaleKind

GRANTS = "grants.milligpu.dev"
INVENTORIES = "inventories.milligpu.dev"
POD_STATUSES = "pod-statuses.milligpu.dev"
AGENT_NODES = "agent-nodes.milligpu.dev"
AGENT_EVENTS = "agent-events.milligpu.dev"
SCHEDULER_NODES = "scheduler-nodes.milligpu.dev"
SCHEDULER_PODS = "scheduler-pods.milligpu.dev"
SCHEDULER_SCALES = "scheduler-scales.milligpu.dev"
QUEUE_GATES = "queue-gates.milligpu.dev"
QUEUE_USERS = "queue-users.milligpu.dev"
LAYOUTS = "layouts.milligpu.dev"
WHEN_SUSPENDED = "when-suspended.milligpu.dev"
_NODE_CONDITIONS = (names.AGENT_READY, names.GPUS_HEALTHY, names.SUSPENDED_CONDITION)
_NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"
_SUBRESOURCE = "request.?subResource.orValue('')"
_API = "admissionregistration.k8s.io/v1"

_Check = tuple[str, str]
"""A CEL expression, and the message where it is false."""


def admission_policies(namespace: str, scheduler: str, agent: str) -> list[dict[str, Any]]:
    """The policies and their bindings; `scheduler` and `agent` are service accounts in the namespace."""
    scheduler, agent = (f"system:serviceaccount:{namespace}:{name}" for name in (scheduler, agent))
    nodes = _writes("", ["nodes", "nodes/*"])
    return [
        *_policy(GRANTS, _writes("", ["pods", "pods/*", "bindings"]), [_grants(scheduler)]),
        *_policy(INVENTORIES, nodes, [_inventories(agent)]),
        *_policy(POD_STATUSES, _writes("", ["pods/status"]), _pod_statuses(agent), account=agent),
        *_policy(AGENT_NODES, nodes, _agent_nodes(agent), account=agent),
        *_policy(AGENT_EVENTS, _writes("events.k8s.io", ["events"]), [_agent_events(agent)], account=agent),
        *_policy(SCHEDULER_NODES, nodes, [_scheduler_nodes(scheduler)], account=scheduler),
        *_policy(SCHEDULER_PODS, _updates(["pods"]), [_scheduler_pods(scheduler)], account=scheduler),
        *_policy(SCHEDULER_SCALES, _writes("apps", _SCALES), [_scheduler_scales(scheduler)], account=scheduler),
        *_policy(QUEUE_GATES, _updates(["pods"]), _queue_gates(scheduler)),
        *_policy(QUEUE_USERS, _writes("", ["pods", "replicationcontrollers"]), [_queue_users("pods")]),
        *_policy(f"template-{QUEUE_USERS}", _writes("apps", _APPS), [_queue_users("templates")]),
        *_policy(f"job-{QUEUE_USERS}", _writes("batch", ["jobs", "cronjobs"]), [_queue_users("jobs")]),
        *_policy(LAYOUTS, nodes, [_layouts(scheduler)]),
        *_policy(WHEN_SUSPENDED, _writes("", ["pods", "namespaces"]), [_when_suspended()]),
    ]


def _grants(account: str) -> _Check:
    """Allow only the scheduler to write grants, and not in a new pod: it also creates the pods of SharePods."""
    unchanged = " && ".join(map(_unchanged, names.GRANTED))
    new = f"(request.operation == 'CREATE' && request.resource.resource == 'pods' && {_SUBRESOURCE} == '')"
    return (
        f"({unchanged}) || (request.userInfo.username == '{account}' && !{new})",
        f"only {account} may write or remove the annotations {', '.join(names.GRANTED)}",
    )


def _inventories(account: str) -> _Check:
    """Allow only the agent on the node itself: a service account's token names the node of its pod."""
    mine = f"request.userInfo.username == '{account}' && {_is_node_of_token('object.metadata.name')}"
    unchanged = " && ".join(_unchanged(name) for name in (names.INVENTORY, names.DRIVER, names.EVICT))
    return (
        f"({unchanged}) || ({mine})",
        f"only {account} on the node itself may write or remove the annotations "
        f"{names.INVENTORY}, {names.DRIVER} and {names.EVICT}",
    )


# -- our own accounts ------------------------------------------------------------------------------------------

_AGENT_ANNOTATIONS = (names.INVENTORY, names.DRIVER, names.AGENT, names.VGPU_TYPE_WRITTEN, names.EVICT)
_SLOTS = (names.VGPU, names.WHOLE_GPU)
_SLOT_FIELDS = ("capacity", "allocatable")
_AGENT_LABELS = (*names.HARDWARE_LABELS, *names.DRIVER_LABELS, names.VGPU_TYPE)


def _pod_statuses(account: str) -> list[_Check]:
    """The agent marks pods as failed that its kubelet never starts."""
    node = "has(object.spec.nodeName) && " + _is_node_of_token("object.spec.nodeName")
    failed = "object.?status.?phase.orValue('') == 'Failed'"
    return [
        (f"{node} && {failed}", f"{account} may only mark pods of its own node as failed"),
        (
            f"{_same_fields('status', ('phase', 'reason', 'message'))} && {_same_metadata()}",
            f"{account} may write only phase, reason and message of a pod",
        ),
    ]


def _agent_nodes(account: str) -> list[_Check]:
    """The agent writes GPUs and slots of its own Node object; a token that names no node writes none."""
    labels = _same_entries("labels", _AGENT_LABELS, names.VGPU_PROFILE)
    annotations = _same_entries("annotations", _AGENT_ANNOTATIONS)
    slots = " && ".join(_same_keys(f"status.?{field}", _SLOTS) for field in _SLOT_FIELDS)
    mine = _is_node_of_token("object.metadata.name")
    return [
        (
            f"request.operation == 'UPDATE' && {_SUBRESOURCE} in ['', 'status'] && {mine}",
            f"{account} may write only the Node object that its token names",
        ),
        (
            f"{labels} && {annotations} && {_same_metadata(('labels', 'annotations'))} "
            "&& object.spec == oldObject.spec",
            f"{account} may write only the labels and annotations of GPUs on its Node object",
        ),
        (
            f"{_SUBRESOURCE} == '' || ({slots} && {_same_fields('status', _SLOT_FIELDS)})",
            f"{account} may write only the numbers of {' and '.join(_SLOTS)} in its Node's status",
        ),
    ]


def _agent_events(account: str) -> _Check:
    agent = f"object.reportingController == '{names.AGENT_CONTROLLER}'"
    mine = f"{agent} && {_is_node_of_token('object.reportingInstance')}"
    return mine, f"{account} may write events only in the name of the agent on its own node"


def _scheduler_nodes(account: str) -> _Check:
    """The scheduler says on nodes whether their agent answers and their GPUs are healthy, and their layout.

    It also removes the startup taint, writes the one of suspended nodes, and touches no other taint.
    """
    ours = ", ".join(f"'{each}'" for each in _NODE_CONDITIONS)

    def kept(some: str, others: str) -> str:
        other = f"{others}.?status.?conditions.orValue([]).exists(o, o == c)"
        return f"{some}.?status.?conditions.orValue([]).all(c, c.type in [{ours}] || {other})"

    conditions = f"{kept('object', 'oldObject')} && {kept('oldObject', 'object')}"
    rest = f"{_same_fields('status', ('conditions',))} && {_same_metadata()} && object.spec == oldObject.spec"

    def others(thing: str) -> str:
        ours = f"t.key == '{names.AGENT_NOT_READY}' || t.key == '{names.SUSPENDED}'"
        return f"{thing}.spec.?taints.orValue([]).filter(t, !({ours}))"

    kept_out = f"t.key == '{names.AGENT_NOT_READY}'"
    taints = (
        f"{others('object')} == {others('oldObject')} && "
        f"(!object.spec.?taints.orValue([]).exists(t, {kept_out}) || "
        f"oldObject.spec.?taints.orValue([]).exists(t, {kept_out})) && {_same_fields('spec', ('taints',))}"
    )
    layout = (
        f"{_same_entries('annotations', (names.LAYOUT,))} && {_same_metadata(('annotations',))} "
        f"&& (object.spec == oldObject.spec || ({taints}))"
    )
    status = f"({_SUBRESOURCE} == 'status' && {conditions} && {rest})"
    return (
        f"request.operation == 'UPDATE' && ({status} || ({_SUBRESOURCE} == '' && {layout}))",
        f"{account} may write only the conditions {' and '.join(_NODE_CONDITIONS)} of a node, "
        f"its annotation {names.LAYOUT} and its taint {names.SUSPENDED}, "
        f"and remove its taint {names.AGENT_NOT_READY}",
    )


def _layouts(account: str) -> _Check:
    """Allow only the scheduler to write a node's layout; anybody who may write the node may remove it."""
    removed = f"(object != null && !('{names.LAYOUT}' in object.metadata.?annotations.orValue({{}})))"
    return (
        f"{_unchanged(names.LAYOUT)} || {removed} || request.userInfo.username == '{account}'",
        f"only {account} may write the annotation {names.LAYOUT}; write a GpuCalendar instead",
    )


def _when_suspended() -> _Check:
    """Refuse a misspelled value; a pod that changes later stays as it was admitted."""
    value = f"(object == null ? '' : object.metadata.?annotations[?'{names.WHEN_SUSPENDED}'].orValue(''))"
    before = f"(oldObject == null ? '' : oldObject.metadata.?annotations[?'{names.WHEN_SUSPENDED}'].orValue(''))"
    return (
        f"{value} in ['', 'keep', 'drain'] || {value} == {before}",
        f"the annotation {names.WHEN_SUSPENDED} must be keep or drain",
    )


def _scheduler_pods(account: str) -> _Check:
    """The scheduler removes the gates of queues."""
    rest = f"{_same_fields('spec', ('schedulingGates',))} && {_same_metadata()}"
    return (
        f"{_gates('object')} == {_gates('oldObject')}.filter(g, g.name != '{names.QUEUE}') && {rest}",
        f"{account} may only remove the scheduling gate {names.QUEUE} of a pod",
    )


_SCALES = [f"{kind.plural}/scale" for kind in ScaleKind]


def _scheduler_scales(account: str) -> _Check:
    """The scheduler scales targets of services, and turns nothing off."""
    return "object.?spec.?replicas.orValue(0) >= 1", f"{account} may not scale to zero"


def _queue_gates(account: str) -> list[_Check]:
    """Whose turn has come is decided by the scheduler, and a pod stays in its queue."""
    has = f"exists(g, g.name == '{names.QUEUE}')"

    def label(pod: str) -> str:
        return f"{pod}.metadata.?labels[?'{names.QUEUE}'].orValue('')"

    return [
        (
            f"{_gates('object')}.{has} || !{_gates('oldObject')}.{has} || request.userInfo.username == '{account}'",
            f"only {account} may remove the scheduling gate {names.QUEUE}",
        ),
        (f"{label('object')} == {label('oldObject')}", f"the label {names.QUEUE} stays as it was at admission"),
    ]


def _gates(pod: str) -> str:
    return f"{pod}.spec.?schedulingGates.orValue([])"


_APPS = ["deployments", "replicasets", "statefulsets", "daemonsets"]
_POD_OF = {
    "pods": "(dyn({0}).kind == 'Pod' ? dyn({0}) : dyn({0}).spec.template)",
    "templates": "dyn({0}).spec.template",
    "jobs": "(has(dyn({0}).spec.jobTemplate) ? dyn({0}).spec.jobTemplate.spec.template : dyn({0}).spec.template)",
}
"""CEL: the pod that an object is or creates."""


def _queue_users(where: str) -> _Check:
    """Let everybody write only their own name; controllers copy it from a template into its pods."""

    def value(thing: str) -> str:
        return f"{_POD_OF[where].format(thing)}.?metadata.?annotations[?'{names.USER}'].orValue('')"

    before = f"(oldObject == null ? '' : {value('oldObject')})"
    name, after = "request.userInfo.username", value("object")
    return (
        f"[{after}].all(u, u == '' || u == {before} || u == {name} || {name}.startsWith('{CONTROLLERS}'))",
        f"the annotation {names.USER} can only be the name of the user who writes it",
    )


# -- CEL -------------------------------------------------------------------------------------------------------


def _is_node_of_token(name: str) -> str:
    extra = "request.userInfo.extra"
    return f"has({extra}) && '{_NODE_OF_TOKEN}' in {extra} && {name} in {extra}['{_NODE_OF_TOKEN}']"


def _unchanged(annotation: str) -> str:
    def value(thing: str) -> str:
        return f"({thing}.?metadata.?annotations[?'{annotation}'].orValue(''))"

    # A new object and a Binding have no old object; a Binding has annotations of its own.
    before = f"(oldObject == null ? '' : {value('oldObject')})"
    after = f"(object == null ? '' : {value('object')})"
    return f"{after} == {before}"


def _same_fields(key: str, but: Iterable[str]) -> str:
    """Whether all fields of a part of the object are as they were, those of later versions included, but some."""
    free = ", ".join(f"'{each}'" for each in but)

    def kept(some: str, other: str) -> str:
        return f"{some}.all(k, k in [{free}] || (k in {other} && {other}[k] == {some}[k]))"

    # Fields are keys here: the API server's type check of policies knows no such thing.
    after, before = f"dyn(object).{key}", f"dyn(oldObject).{key}"
    return f"{kept(after, before)} && {kept(before, after)}"


def _same_metadata(but: Iterable[str] = ()) -> str:
    """Whether metadata is as it was, but for some fields; the API server itself writes the first three."""
    return _same_fields("metadata", ("managedFields", "resourceVersion", "generation", *but))


def _same_entries(key: str, but: Iterable[str], prefix: str = "") -> str:
    """Whether all labels or annotations are as they were, but for some, and for those with a prefix."""
    return _same_keys(f"metadata.?{key}", but, prefix)


def _same_keys(where: str, but: Iterable[str], prefix: str = "") -> str:
    """Whether a table of the object is as it was, but for some keys."""
    free = ", ".join(f"'{each}'" for each in but)
    ours = f"k in [{free}]" + (f" || k.startsWith('{prefix}')" if prefix else "")

    def value(thing: str) -> str:
        return f"{thing}.{where}.orValue({{}})"

    def kept(some: str, other: str) -> str:
        return f"{value(some)}.all(k, {ours} || (k in {value(other)} && {value(other)}[k] == {value(some)}[k]))"

    return f"{kept('object', 'oldObject')} && {kept('oldObject', 'object')}"


# -- objects ---------------------------------------------------------------------------------------------------


def _updates(resources: list[str]) -> dict[str, Any]:
    return {**_writes("", resources), "operations": ["UPDATE"]}


def _writes(group: str, resources: list[str]) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": resources,
    }


def _policy(
    name: str, rule: Mapping[str, Any], checks: Iterable[_Check], *, account: str = ""
) -> list[dict[str, Any]]:
    """Return a policy and its binding; with an `account`, it is about that account only."""
    ours = f"request.userInfo.username == '{account}'"
    conditions = {"matchConditions": [{"name": "account", "expression": ours}]} if account else {}
    return [
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
                **conditions,
                "validations": [
                    {"expression": expression, "message": message, "reason": "Forbidden"}
                    for expression, message in checks
                ],
            },
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def request_policies(target: WebhookAddress) -> list[dict[str, Any]]:
    """Return two more policies and their bindings, for clusters with the webhook; they hold while it is down."""
    account = f"system:serviceaccount:{target.namespace}:{target.account}"
    return [
        *_policy("milligpu-requests", {**NEW_PODS, "operations": ["UPDATE"]}, [_fixed_once_read()]),
        *_policy("milligpu-sharepods", NEW_PODS, [_only_sharepods_pods(target.account)], account=account),
    ]


def _fixed_once_read() -> _Check:
    """Keep the annotations that quotas depend on as they were at admission."""
    keys = ", ".join(f"'{key}'" for key in (names.SHARES, names.DIALECT, names.ATTACH))

    def value(pod: str) -> str:
        notes = f"{pod}.metadata.annotations"
        return f"(has({notes}) && k in {notes} ? {notes}[k] : '')"

    return (
        f"[{keys}].all(k, {value('object')} == {value('oldObject')})",
        f"{names.SHARES}, {names.DIALECT} and {names.ATTACH} stay as they were at admission",
    )


def _only_sharepods_pods(account: str) -> _Check:
    """Restrict the scheduler's service account, which may create pods, to pods of SharePods."""
    return (
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, "
        "o.kind == 'SharePod' && o.apiVersion.startsWith('kubeshare.nthu/') && o.?controller.orValue(false))",
        f"{account} creates the pods of SharePods, and no others",
    )
