"""The API server as the agent's account sees it, and the agent itself."""

from collections.abc import Iterable

import aiohttp
import msgspec

from milligpu.dialects import choose
from milligpu.kube import config
from milligpu.kube.api import Api, Refused
from milligpu.kube.objects import Node
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.node.doctor.finding import Finding, bad, good
from milligpu.node.settings import Settings
from milligpu.wire.inventory import decode_inventory

RIGHTS = (
    ("", "nodes", "", "get list watch patch"),
    ("", "pods", "", "get list watch"),
    ("", "pods", "eviction", "create"),
    ("events.k8s.io", "events", "", "create"),
)
"""What the agent's account needs: group, resource, subresource, verbs."""
_OURS = frozenset({names.VGPU, names.WHOLE_GPU})
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Verdict


async def cluster(settings: Settings) -> Iterable[Finding]:
    """Reachable, with the rights that the agent needs, and with this node in it."""
    async with Api(config.find(settings.kubeconfig)) as api:
        missing = [right for right in _flat() if not await _may(api, *right)]
        words = ", ".join(f"{verb} {resource}{'/' + sub if sub else ''}" for _, resource, sub, verb in missing)
        fix = "milligpu scheduler manifests | kubectl apply -f -, and run the agent as milligpu-agent"
        rights = bad("rights", f"may not {words}", fix) if missing else good("rights", "all that the agent needs")
        return [good("API server", "answers"), rights, *await _node(api, settings.node)]


def _flat() -> Iterable[tuple[str, str, str, str]]:
    return ((group, kind, sub, verb) for group, kind, sub, verbs in RIGHTS for verb in verbs.split())


async def _may(api: Api, group: str, resource: str, subresource: str, verb: str) -> bool:
    wanted = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    return msgspec.json.decode(await api.send("POST", _REVIEWS, body), type=_Review).status.allowed


async def _node(api: Api, name: str) -> Iterable[Finding]:
    try:
        node = msgspec.json.decode(await api.get(f"/api/v1/nodes/{name}"), type=Node)
    except Refused as error:
        return [bad("node", error.message, "name it as kubectl get nodes does, with --node")]
    return [_others(node), _inventory(node), _counted(node)]


def _others(node: Node) -> Finding:
    counted = node.status.allocatable or {}
    others = sorted(name for name in counted if name in choose.RESOURCES - _OURS and counted[name] != "0")
    if others:
        fix = "take the other system's device plugin off this node, then restart the kubelet"
        return bad("other GPU resources", f"the node counts {', '.join(others)}", fix)
    return good("other GPU resources", "none")


def _inventory(node: Node) -> Finding:
    text = (node.metadata.annotations or {}).get(names.INVENTORY)
    fix = "start the agent, under its own account; its log says what it could not write"
    try:
        cards = decode_inventory(text) if text else ()
    except BadFormat as error:
        return bad("inventory", error.message, fix)
    if not cards:
        return bad("inventory", f"the node has no annotation {names.INVENTORY}", fix)
    return good("inventory", f"{len(cards)} GPUs on the node object")


def _counted(node: Node) -> Finding:
    counted = {name: (node.status.allocatable or {}).get(name, "0") for name in (names.VGPU, names.WHOLE_GPU)}
    text = ", ".join(f"{name} {amount}" for name, amount in counted.items())
    if counted[names.VGPU] == "0":
        return bad("counted", text, "start the agent; the kubelet counts what it registers")
    return good("counted", text)


async def agent(settings: Settings) -> Iterable[Finding]:
    """Whether it runs and is registered with the kubelet."""
    host, _, port = settings.listen.rpartition(":")
    url = f"http://{'127.0.0.1' if host in {'', '0.0.0.0'} else host}:{port}/readyz"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as session, session.get(url) as answer:
            said = (await answer.text()).strip()
            if answer.status == 200:
                return [good("agent", "runs, and is registered with the kubelet")]
            return [bad("agent", f"runs, but is not ready: {said}", "see its log")]
    except (aiohttp.ClientError, TimeoutError):
        return [bad("agent", f"does not answer at {url}", f"start it: milligpu agent --node {settings.node}")]
