"""The two calls of lightkube whose types a strict checker cannot follow, with types that it can."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from lightkube import ALL_NS, Client
from lightkube.core.resource import GlobalResource, NamespacedResource

Namespaced = TypeVar("Namespaced", bound=NamespacedResource)
Global = TypeVar("Global", bound=GlobalResource)


def list_all(client: Client, kind: type[Global]) -> list[Global]:
    """All objects of a kind that lives outside namespaces."""
    return list(cast(Any, client).list(kind))


def list_in(client: Client, kind: type[Namespaced], namespace: str | None) -> list[Namespaced]:
    """All objects of a kind in one namespace, or with None in all of them."""
    return list(cast(Any, client).list(kind, namespace=namespace or ALL_NS))


def patch_global(client: Client, kind: type[Global], name: str, change: Mapping[str, Any]) -> Global:
    """Merge a change into an object that lives outside namespaces."""
    return cast(Any, client).patch(kind, name, dict(change))
