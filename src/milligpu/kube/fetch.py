"""Objects of a cluster for commands, which do one thing after the other with whatever login kubectl would use."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx2  # lightkube's HTTP client: its logins (exec plugins, passwords) are made for it
import msgspec

from milligpu.kube.api import MERGE_PATCH, ApiRefused, error_message
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.names import CLASSES_PATH, QUEUES_PATH, SERVERS_PATH
from milligpu.wire.kubernetes import (
    KubeGpuClass,
    KubeGpuQueue,
    KubeGpuServer,
    KubeNode,
    KubePod,
    ObjectList,
    Thing,
    decode_pod,
)

# Longer lists are fetched in pages.
_PAGE = 500
_BAD = 400


class _Event(msgspec.Struct):
    message: str = ""
    reason: str = ""
    lastTimestamp: str | None = None
    eventTime: str | None = None


class _Events(msgspec.Struct):
    items: list[_Event]


_FORBIDDEN, _NOT_FOUND = 403, 404


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


_nodes = msgspec.json.Decoder(ObjectList[KubeNode])
_classes = msgspec.json.Decoder(ObjectList[KubeGpuClass])
_queues = msgspec.json.Decoder(ObjectList[KubeGpuQueue])
_servers = msgspec.json.Decoder(ObjectList[KubeGpuServer])
_pods = msgspec.json.Decoder(ObjectList[KubePod])


def list_nodes(client: httpx2.Client) -> list[KubeNode]:
    return _listed(client, "/api/v1/nodes", _nodes)


def server_version(client: httpx2.Client) -> str:
    """Return the API server's version, such as v1.36.3."""
    return str(msgspec.json.decode(_send(client, "GET", "/version"))["gitVersion"])


def get_json(client: httpx2.Client, path: str) -> Any:
    """Return any object or list as plain data."""
    return msgspec.json.decode(_send(client, "GET", path))


def post_json(client: httpx2.Client, path: str, body: object) -> bytes:
    """Create an object, such as a review that the API server answers at once, and return the answer."""
    headers = {"Content-Type": "application/json"}
    return _send(client, "POST", path, content=msgspec.json.encode(body), headers=headers)


def dry_run_pod(client: httpx2.Client, namespace: str, pod: Mapping[str, Any]) -> KubePod:
    """Return a new pod as admission would leave it, without creating it."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods?dryRun=All"
    return decode_pod(post_json(client, path, pod))


def get_text(client: httpx2.Client, path: str) -> str:
    """Return a text, such as a log."""
    return _send(client, "GET", path).decode(errors="replace")


def get_node(client: httpx2.Client, name: str) -> KubeNode:
    return msgspec.json.decode(_send(client, "GET", f"/api/v1/nodes/{quote(name)}"), type=KubeNode)


def list_pods(client: httpx2.Client) -> list[KubePod]:
    """Return the pods of all namespaces."""
    return _listed(client, "/api/v1/pods", _pods)


def list_classes(client: httpx2.Client) -> list[KubeGpuClass]:
    """Return the classes; none where the cluster does not know the kind."""
    try:
        return _listed(client, CLASSES_PATH, _classes)
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        return []


def list_queues(client: httpx2.Client) -> list[KubeGpuQueue]:
    """Return the queues; none where the cluster does not know the kind."""
    try:
        return _listed(client, QUEUES_PATH, _queues)
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        return []


def list_servers(client: httpx2.Client) -> list[KubeGpuServer]:
    """Return the GPU servers; none where the cluster does not know the kind, or does not show it to this user."""
    try:
        return _listed(client, SERVERS_PATH, _servers)
    except ApiRefused as error:
        if error.status not in {_NOT_FOUND, _FORBIDDEN}:
            raise
        return []


def get_pod(client: httpx2.Client, namespace: str, name: str) -> KubePod:
    """Return one pod; BadRequest if there is none of this name."""
    try:
        return decode_pod(_send(client, "GET", _pod_path(namespace, name)))
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        hint = f"list the pods with: kubectl get pods -n {namespace}"
        raise BadRequest("pod", f"{namespace}/{name}", "an existing pod", hint=hint) from None


def annotate_pod(
    client: httpx2.Client, namespace: str, name: str, annotations: Mapping[str, str | None]
) -> KubePod:
    """Write annotations of a pod, or delete those that are None, and return the pod with them."""
    body = msgspec.json.encode({"metadata": {"annotations": annotations}})
    headers = {"Content-Type": MERGE_PATCH}
    return decode_pod(_send(client, "PATCH", _pod_path(namespace, name), content=body, headers=headers))


def patch_json(client: httpx2.Client, path: str, patch: Mapping[str, Any]) -> None:
    """Merge a patch into an object."""
    _send(client, "PATCH", path, content=msgspec.json.encode(patch), headers={"Content-Type": MERGE_PATCH})


def delete_json(client: httpx2.Client, path: str) -> None:
    """Delete an object."""
    _send(client, "DELETE", path)


def watch_pod(client: httpx2.Client, pod: KubePod, seconds: int) -> Iterator[KubePod]:
    """Yield the pod after every change since it was read, for this many seconds or until it is gone."""
    meta = pod.metadata
    parameters = {
        "watch": "true",
        "fieldSelector": f"metadata.name={meta.name}",
        "resourceVersion": meta.resourceVersion,
        "timeoutSeconds": str(seconds),
    }
    path = f"/api/v1/namespaces/{quote(meta.namespace)}/pods"
    try:
        with client.stream("GET", path, params=parameters, timeout=seconds + 10.0) as answer:
            if answer.status_code >= _BAD:
                raise ApiRefused(f"watch {path}", answer.status_code, error_message(answer.read()))
            for line in answer.iter_lines():
                change = msgspec.json.decode(line, type=_Change)
                if change.type not in {"ADDED", "MODIFIED"}:
                    return
                yield decode_pod(bytes(change.object))
    except httpx2.TransportError as error:
        raise _unavailable(path, error) from None


def event_messages(client: httpx2.Client, namespace: str, uid: str, reason: str) -> list[str]:
    """Return the messages of a pod's events with this reason, the latest last."""
    parameters = {"fieldSelector": f"involvedObject.uid={uid},reason={reason}"}
    body = _send(client, "GET", f"/api/v1/namespaces/{quote(namespace)}/events", params=parameters)
    return [event.message for event in msgspec.json.decode(body, type=_Events).items]


def pod_events(client: httpx2.Client, namespace: str, pod: str) -> list[str]:
    """Return a pod's events as lines, the latest first."""
    parameters = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={pod}"}
    body = _send(client, "GET", f"/api/v1/namespaces/{quote(namespace)}/events", params=parameters)
    events = msgspec.json.decode(body, type=_Events).items
    ordered = sorted(events, key=lambda event: event.lastTimestamp or event.eventTime or "", reverse=True)
    return [f"{event.reason}: {event.message}" for event in ordered]


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def _listed(client: httpx2.Client, path: str, decoder: "msgspec.json.Decoder[ObjectList[Thing]]") -> list[Thing]:
    items: list[Thing] = []
    parameters = {"limit": str(_PAGE)}
    while True:
        page = decoder.decode(_send(client, "GET", path, params=parameters))
        items += page.items
        if not page.metadata.continue_:
            return items
        parameters["continue"] = page.metadata.continue_


def _send(client: httpx2.Client, method: str, path: str, **options: Any) -> bytes:
    try:
        answer = client.request(method, path, **options)
    except httpx2.TransportError as error:
        raise _unavailable(path, error) from None
    if answer.status_code >= _BAD:
        raise ApiRefused(f"{method} {path}", answer.status_code, error_message(answer.content))
    return answer.content


def _unavailable(path: str, error: Exception) -> Unavailable:
    return Unavailable(f"{path}: {type(error).__name__} {error}".rstrip())
