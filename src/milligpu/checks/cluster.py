"""The API server, as seen by the agent's service account, and the agent itself."""

from collections.abc import Iterable

import msgspec

from milligpu.agent.settings import AgentSettings
from milligpu.checks.result import CheckResult, failed, passed
from milligpu.dialects.choose import KNOWN
from milligpu.kube import config
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.connections import get_url
from milligpu.manifests.rbac import AGENT_RULES, required_permissions
from milligpu.model import names
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.kubernetes import KubeNode

_OURS = frozenset({names.VGPU, names.WHOLE_GPU})
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TIMEOUT_S = 5.0


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Verdict


async def cluster(settings: AgentSettings) -> Iterable[CheckResult]:
    """The API server answers, permits what the agent needs, and knows this node."""
    async with ApiClient(config.find_cluster(settings.kubeconfig)) as api:
        missing = [each for each in required_permissions(AGENT_RULES) if not await _may(api, *each)]
        actions = ", ".join(f"{verb} {resource}{'/' + sub if sub else ''}" for _, resource, sub, verb in missing)
        fix = "install the chart, or apply `milligpu manifests --no-workloads`; run the agent as milligpu-agent"
        permissions = (
            failed("permissions", f"not allowed: {actions}", fix)
            if missing
            else passed("permissions", "all that the agent needs")
        )
        return [passed("API server", "answers"), permissions, *await _node(api, settings.node)]


async def _may(api: ApiClient, group: str, resource: str, subresource: str, verb: str) -> bool:
    wanted = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    return msgspec.json.decode(await api.send("POST", _REVIEWS, body), type=_Review).status.allowed


async def _node(api: ApiClient, name: str) -> Iterable[CheckResult]:
    try:
        node = msgspec.json.decode(await api.get(f"/api/v1/nodes/{name}"), type=KubeNode)
    except ApiRefused as error:
        return [failed("node", error.message, "use the node's name as in `kubectl get nodes`: --node NAME")]
    return [_others(node), _inventory(node), _allocatable(node)]


def _others(node: KubeNode) -> CheckResult:
    counted = node.status.allocatable or {}
    others = sorted(name for name in counted if name in KNOWN.resources - _OURS and counted[name] != "0")
    if others:
        fix = "remove the other system's device plugin from this node, then restart the kubelet"
        return failed("other GPU resources", f"the node advertises {', '.join(others)}", fix)
    return passed("other GPU resources", "none")


def _inventory(node: KubeNode) -> CheckResult:
    text = (node.metadata.annotations or {}).get(names.INVENTORY)
    fix = "start the agent with its own service account; its log says what it could not write"
    try:
        gpus = decode_inventory(text) if text else ()
    except BadFormat as error:
        return failed("inventory", error.message, fix)
    if not gpus:
        return failed("inventory", f"the node has no annotation {names.INVENTORY}", fix)
    return passed("inventory", f"{len(gpus)} GPUs in the node's annotation")


def _allocatable(node: KubeNode) -> CheckResult:
    counted = {name: (node.status.allocatable or {}).get(name, "0") for name in (names.VGPU, names.WHOLE_GPU)}
    text = ", ".join(f"{name} {amount}" for name, amount in counted.items())
    if counted[names.VGPU] == "0":
        return failed("allocatable", text, "start the agent, which registers its device slots with the kubelet")
    return passed("allocatable", text)


async def agent(settings: AgentSettings) -> Iterable[CheckResult]:
    """The agent runs and is registered with the kubelet."""
    host, _, port = settings.listen.rpartition(":")
    url = f"http://{'127.0.0.1' if host in {'', '0.0.0.0'} else host}:{port}/readyz"
    try:
        answer = await get_url(url, timeout_s=_TIMEOUT_S)
    except Unavailable:
        return [failed("agent", f"no answer from {url}", f"start it with: milligpu agent --node {settings.node}")]
    if answer.status == 200:
        return [passed("agent", "running and registered with the kubelet")]
    message = answer.body.decode(errors="replace").strip()
    return [failed("agent", f"running, but not ready: {message}", "see the log of the agent")]
