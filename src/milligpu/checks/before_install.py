"""Checks of a cluster before milligpu is installed: `milligpu doctor --cluster`. They change nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from milligpu.checks.result import Check, CheckLevel, CheckResult, failed, passed, run_checks, skipped
from milligpu.dialects.choose import KNOWN
from milligpu.kube import config
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model import names

Object: TypeAlias = dict[str, Any]

# Before, ValidatingAdmissionPolicies and CDI devices of device plugins are not there for everybody.
OLDEST = (1, 33)
# What is read for the checks, by the name under which they find it.
_LISTS = {
    "nodes": "/api/v1/nodes",
    "daemonsets": "/apis/apps/v1/daemonsets",
    "policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
}
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# The kinds that an installation creates for the whole cluster: API group and resource.
_CREATED = (
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
)
_GPU_PLUGIN = re.compile(
    r"(nvidia|gpu|hami|kubeshare).*(device-plugin|plugin|vgpu)|hami|gpu-manager|gpushare", re.I
)
_GPU_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.product")
_RUNTIME = re.compile(r"(?P<name>[\w-]+)://(?P<major>\d+)\.(?P<minor>\d+)")
_PROBE = "milligpu-doctor"
_NOT_FOUND, _FORBIDDEN = 404, 403


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the API server says about a cluster."""

    version: str
    """Of the API server, such as v1.36.3."""
    nodes: tuple[Object, ...] = ()
    daemonsets: tuple[Object, ...] = ()
    forbidden: tuple[str, ...] = ()
    """What this login may not create."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """What could not be listed, and why."""
    agent_refused: str = ""
    """Why a pod like the agent's would be refused."""
    namespace: str = "milligpu"
    exists: bool = False
    """Whether the namespace is there."""


async def check_cluster(kubeconfig: str | None, namespace: str) -> list[CheckResult]:
    """Look at the cluster, and say what would be in the way."""
    found: list[ClusterFacts] = []

    async def answers() -> Iterable[CheckResult]:
        async with ApiClient(config.find_cluster(kubeconfig)) as api:
            found.append(await _read(api, namespace))
        return [passed("API server", "answers")]

    fix = "name a kubeconfig with a reachable API server: --kubeconfig FILE"
    results = await run_checks([Check("cluster", "API server", answers, fix)])
    if not found:
        return results
    facts = found[0]
    return results + await run_checks(
        [
            Check("cluster", "versions", lambda: versions(facts)),
            Check("cluster", "permissions", lambda: permissions(facts)),
            Check("cluster", "pod security", lambda: pod_security(facts)),
            Check("nodes", "container runtime", lambda: runtimes(facts)),
            Check("nodes", "GPUs", lambda: gpu_nodes(facts)),
            Check("nodes", "other GPU plugins", lambda: other_plugins(facts)),
        ]
    )


async def _read(api: ApiClient, namespace: str) -> ClusterFacts:
    version: str = msgspec.json.decode(await api.get("/version"))["gitVersion"]
    lists: dict[str, tuple[Object, ...]] = {}
    unread: dict[str, str] = {}
    for name, path in _LISTS.items():
        try:
            lists[name] = tuple(msgspec.json.decode(await api.get(path, timeout_s=30.0))["items"])
        except ApiRefused as error:
            unread[name] = error.message
    exists = await _exists(api, f"/api/v1/namespaces/{namespace}")
    return ClusterFacts(
        version,
        lists.get("nodes", ()),
        lists.get("daemonsets", ()),
        tuple([kind for group, kind in _CREATED if not await _may_create(api, group, kind)]),
        unread,
        await _agent_refused(api, namespace if exists else "default"),
        namespace,
        exists,
    )


async def _exists(api: ApiClient, path: str) -> bool:
    try:
        await api.get(path)
    except ApiRefused as error:
        if error.status not in {_NOT_FOUND, _FORBIDDEN}:
            raise
        return False
    return True


async def _may_create(api: ApiClient, group: str, resource: str) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"group": group, "resource": resource, "verb": "create"}},
    }
    return bool(msgspec.json.decode(await api.send("POST", _REVIEWS, body))["status"].get("allowed"))


async def _agent_refused(api: ApiClient, namespace: str) -> str:
    """Ask the API server, without creating anything, whether it would take a pod like the agent's."""
    mount = {"name": "run", "hostPath": {"path": "/run/milligpu", "type": "DirectoryOrCreate"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _PROBE, "namespace": namespace},
        "spec": {"hostPID": True, "volumes": [mount], "containers": [{"name": "agent", "image": _PROBE}]},
    }
    try:
        await api.send("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except ApiRefused as error:
        return error.message
    return ""


def versions(facts: ClusterFacts) -> Iterator[CheckResult]:
    """API server and kubelets are new enough, and admission policies are served."""
    wanted = ".".join(map(str, OLDEST))
    if _minor(facts.version) < OLDEST:
        yield failed(
            "Kubernetes version", f"{facts.version} is older than {wanted}", f"upgrade to {wanted} or later"
        )
    else:
        yield passed("Kubernetes version", facts.version)
    old = [
        f"{_name(node)} ({version})"
        for node in facts.nodes
        if _minor(version := node["status"]["nodeInfo"]["kubeletVersion"]) < OLDEST
    ]
    if old:
        yield failed("kubelets", f"older than {wanted}: {_some(old)}", "upgrade these nodes, or leave them out")
    elif facts.nodes:
        yield passed("kubelets", f"all of {len(facts.nodes)} nodes have {wanted} or later")
    if "policies" in facts.unread:
        message = f"validatingadmissionpolicies: {facts.unread['policies']}"
        yield failed("admission policies", message, "serve admissionregistration.k8s.io/v1, on by default")
    else:
        yield passed("admission policies", "served")


def permissions(facts: ClusterFacts) -> Iterator[CheckResult]:
    """This login may create what an installation creates."""
    if facts.forbidden:
        message = f"not allowed to create: {', '.join(facts.forbidden)}"
        yield failed("permissions", message, "install with the role cluster-admin")
    else:
        yield passed("permissions", "all that an installation needs")


def pod_security(facts: ClusterFacts) -> Iterator[CheckResult]:
    """The agent's pod needs hostPath volumes and the node's processes."""
    label = "pod-security.kubernetes.io/enforce=privileged"
    if facts.agent_refused:
        create = "" if facts.exists else f"kubectl create namespace {facts.namespace} && "
        fix = f"{create}kubectl label namespace {facts.namespace} {label}"
        yield failed("pod security", f"the agent would be refused: {facts.agent_refused}", fix)
    else:
        where = facts.namespace if facts.exists else "default"
        yield passed("pod security", f"the agent's pod would be admitted (tried in the namespace {where})")


def runtimes(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Every node's container runtime knows CDI."""
    if not facts.nodes:
        yield skipped("container runtime", facts.unread.get("nodes", "the cluster has no nodes"))
        return
    unfit: list[str] = []
    unsure: list[str] = []
    for node in facts.nodes:
        text: str = node["status"]["nodeInfo"]["containerRuntimeVersion"]
        match = _RUNTIME.match(text)
        version = (int(match["major"]), int(match["minor"])) if match else (0, 0)
        oldest = {"containerd": (1, 7), "cri-o": (1, 23)}.get(match["name"] if match else "")
        if oldest is None or version < oldest:
            unfit.append(f"{_name(node)} ({text})")
        elif match and match["name"] == "containerd" and version < (2, 0):
            unsure.append(f"{_name(node)} ({text})")
    if unfit:
        fix = "use containerd 1.7 or later, or CRI-O 1.23 or later"
        yield failed("container runtime", f"without CDI: {_some(unfit)}", fix)
    elif not unsure:
        yield passed("container runtime", f"CDI on all of {len(facts.nodes)} nodes")
    if unsure:
        fix = 'set enable_cdi = true in [plugins."io.containerd.grpc.v1.cri"] of containerd\'s configuration'
        yield failed("CDI", f"off by default: {_some(unsure)}", fix, CheckLevel.WARNING)


def gpu_nodes(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Some nodes have GPUs, as far as labels and resources tell."""
    found = [_name(node) for node in facts.nodes if _has_gpus(node)]
    if found:
        yield passed("GPUs", f"on {_some(found)}")
    elif facts.nodes:
        fix = "to try milligpu without GPUs: --set softgpu.enabled=true"
        message = "no node has a label or resource of a GPU"
        yield failed("GPUs", message, fix, CheckLevel.WARNING)


def other_plugins(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Nobody else offers the same GPUs; if so, the result says who, and where."""
    if "daemonsets" in facts.unread:
        yield skipped("other GPU plugins", facts.unread["daemonsets"])
        return
    plugins = [_full_name(each) for each in facts.daemonsets if _is_gpu_plugin(each)]
    served: dict[str, list[str]] = {}
    for node in facts.nodes:
        if names.INVENTORY in node["metadata"].get("annotations", {}):
            continue
        for resource, amount in node["status"].get("allocatable", {}).items():
            if resource in KNOWN.resources and amount != "0":
                served.setdefault(resource, []).append(_name(node))
    owners = f"; DaemonSets: {', '.join(plugins)}" if plugins else ""
    for resource, nodes in sorted(served.items()):
        fix = "take over node by node: docs/install.md, Move from another system"
        yield failed(resource, f"offered by another plugin on {_some(nodes)}{owners}", fix)
    if plugins and not served:
        fix = "remove it, or keep it off milligpu's nodes: docs/install.md, Move from another system"
        yield failed("other GPU plugins", f"DaemonSets: {', '.join(plugins)}", fix, CheckLevel.WARNING)
    if not plugins and not served:
        yield passed("other GPU plugins", "none")


def _has_gpus(node: Object) -> bool:
    labels, resources = node["metadata"].get("labels", {}), node["status"].get("capacity", {})
    return any(label in labels for label in _GPU_LABELS) or any(name in KNOWN.resources for name in resources)


def _is_gpu_plugin(daemons: Object) -> bool:
    if daemons["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "milligpu":
        return False
    containers: list[Object] = daemons["spec"]["template"]["spec"]["containers"]
    return any(_GPU_PLUGIN.search(text) for each in containers for text in (each["name"], each["image"]))


def _minor(version: str) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _name(found: Object) -> str:
    return found["metadata"]["name"]


def _full_name(found: Object) -> str:
    return f"{found['metadata']['namespace']}/{_name(found)}"


def _some(found: list[str], most: int = 3) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
