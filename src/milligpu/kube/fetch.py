"""The cluster at one moment, for commands: everything listed once, with whatever login kubectl would use."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from lightkube import ALL_NS, Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Node, Pod

from milligpu.kube import objects
from milligpu.kube.api import Refused

# More than fits into one answer is fetched in pages.
_PAGE = 500


def nodes(client: Client) -> list[objects.Node]:
    """All nodes."""
    return [_as(objects.Node, each) for each in _listed(client, Node)]


def pods(client: Client) -> list[objects.Pod]:
    """All pods of all namespaces."""
    return [_as(objects.Pod, each) for each in _listed(client, Pod, namespace=ALL_NS)]


def pod(client: Client, namespace: str, name: str) -> objects.Pod:
    """One pod."""
    try:
        return _as(objects.Pod, client.get(Pod, name, namespace=namespace))
    except ApiError as error:
        raise _refused(f"pod {namespace}/{name}", error) from None


def annotate_pod(client: Client, namespace: str, name: str, annotations: dict[str, str]) -> None:
    """Write annotations of a pod."""
    try:
        cast(Any, client).patch(Pod, name, {"metadata": {"annotations": annotations}}, namespace=namespace)
    except ApiError as error:
        raise _refused(f"pod {namespace}/{name}", error) from None


def notes(client: Client, namespace: str, uid: str, reason: str) -> list[str]:
    """What events of one reason say about a pod, the latest last."""
    fields = {"involvedObject.uid": uid, "reason": reason}
    return [each.message or "" for each in _listed(client, Event, namespace=namespace, fields=fields)]


def _listed(client: Client, kind: Any, **options: Any) -> Iterable[Any]:
    try:
        return list(cast(Any, client).list(kind, chunk_size=_PAGE, **options))
    except ApiError as error:
        raise _refused(f"list {kind.__name__}s", error) from None


def _refused(what: str, error: ApiError) -> Refused:
    return Refused(what, error.status.code or 0, error.status.message or "")


def _as(kind: Any, thing: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(thing), type=kind)
