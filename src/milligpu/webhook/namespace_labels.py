"""Labels of namespaces, for the few reviews that depend on one. A review does not contain its namespace."""

import msgspec

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.wire.kubernetes import ObjectMeta

_NOT_FOUND = 404


class _Namespace(msgspec.Struct):
    metadata: ObjectMeta


class _Request(msgspec.Struct):
    namespace: str = ""


class _Review(msgspec.Struct):
    request: _Request = msgspec.field(default_factory=_Request)


class NamespaceLabels:
    """Reads labels from the API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def of_review(self, body: bytes, label: str) -> str | None:
        """Return a label of the namespace that a review is about; None if it has none, or there is no namespace."""
        try:
            namespace = msgspec.json.decode(body, type=_Review).request.namespace
            if not namespace:
                return None
            found = msgspec.json.decode(await self._api.get(f"/api/v1/namespaces/{namespace}"), type=_Namespace)
        except msgspec.MsgspecError:
            return None  # the review itself says what is wrong with it
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return (found.metadata.labels or {}).get(label)
