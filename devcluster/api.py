"""What lightkube needs before it can be used the way this package does: from threads, and under strict types."""

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
    """Let msgspec, which lightkube decodes with, get to know these kinds before threads use them.

    It works a type out when it decodes the first object of it, and two threads that do so at the same time
    crash the interpreter (msgspec 0.22: segmentation fault). Call this for any further kind that a test
    uses from several threads.
    """
    for kind in kinds:
        cast(Any, decoders).decode_list(b'{"items": []}', kind)


learn(Node, Pod, Event, Namespace, ServiceAccount, ClusterRole, ClusterRoleBinding)
decoders.decode_status(b"{}")


def list_all(client: Client, kind: type[Global]) -> list[Global]:
    """All objects of a kind that lives outside namespaces."""
    return list(cast(Any, client).list(kind))


def list_in(client: Client, kind: type[Namespaced], namespace: str | None) -> list[Namespaced]:
    """All objects of a kind in one namespace, or with None in all of them."""
    return list(cast(Any, client).list(kind, namespace=namespace or ALL_NS))


def patch_global(client: Client, kind: type[Global], name: str, change: Mapping[str, Any]) -> Global:
    """Merge a change into an object that lives outside namespaces."""
    return cast(Any, client).patch(kind, name, dict(change))


def patch_in(
    client: Client, kind: type[Namespaced], namespace: str, name: str, change: Mapping[str, Any]
) -> Namespaced:
    """Merge a change into an object of a namespace."""
    return cast(Any, client).patch(kind, name, dict(change), namespace=namespace)
