"""What lightkube needs to be used from threads and under strict types."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from lightkube import ALL_NS, Client
from lightkube.core import decoders
from lightkube.core.resource import GlobalResource, NamespacedResource
from lightkube.resources.core_v1 import Event, Namespace, Node, Pod, ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding

Namespaced = TypeVar("Namespaced", bound=NamespacedResource)
Global = TypeVar("Global", bound=GlobalResource)


def learn(*kinds: type[GlobalResource] | type[NamespacedResource]) -> None:
    """Let msgspec, with which lightkube decodes, prepare its decoders of these kinds before threads use them.

    msgspec prepares a decoder when it decodes the first object of a type. Two threads that do so at the same time
    crash the interpreter (msgspec 0.22: segmentation fault). Call this for any further kind that a test uses from
    several threads.
    """
    for kind in kinds:
        cast(Any, decoders).decode_list(b'{"items": []}', kind)


learn(Node, Pod, Event, Namespace, ServiceAccount, ClusterRole, ClusterRoleBinding)
decoders.decode_status(b"{}")


def list_all(client: Client, kind: type[Global]) -> list[Global]:
    """List all objects of a cluster-scoped kind."""
    return list(cast(Any, client).list(kind))


def list_in(client: Client, kind: type[Namespaced], namespace: str | None) -> list[Namespaced]:
    """List all objects of a kind in one namespace, or in all namespaces if None."""
    return list(cast(Any, client).list(kind, namespace=namespace or ALL_NS))


def read_json(client: Client, path: str) -> Any:
    """An object or a list as the API server writes it; for loops, as every kubectl takes CPU time to start."""
    answer: Any = cast(Any, client)._client._client.get(path)
    answer.raise_for_status()
    return answer.json()


def send_json(client: Client, method: str, path: str, body: object, kind: str = "application/json") -> Any:
    """Send an object or a patch to any path, such as a subresource, and return the answer."""
    answer: Any = cast(Any, client)._client._client.request(
        method, path, content=json.dumps(body), headers={"content-type": kind}
    )
    answer.raise_for_status()
    return answer.json()


def patch_global(client: Client, kind: type[Global], name: str, change: Mapping[str, Any]) -> Global:
    """Merge-patch a cluster-scoped object."""
    return cast(Any, client).patch(kind, name, dict(change))


def patch_in(
    client: Client, kind: type[Namespaced], namespace: str, name: str, change: Mapping[str, Any]
) -> Namespaced:
    """Merge-patch a namespaced object."""
    return cast(Any, client).patch(kind, name, dict(change), namespace=namespace)
