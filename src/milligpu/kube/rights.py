"""What a user may see: asked of the API server with that user's own login."""

import msgspec

from milligpu.kube.config import BlockingClient
from milligpu.kube.fetch import post_json
from milligpu.model import names

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


class _UserInfo(msgspec.Struct):
    username: str = ""


class _WhoStatus(msgspec.Struct):
    userInfo: _UserInfo


class _Who(msgspec.Struct):
    status: _WhoStatus


def may_list_pods(client: BlockingClient, namespace: str) -> bool:
    """Whether this login may list the pods of a namespace; of all namespaces if it is empty."""
    return _may(client, {"namespace": namespace, "verb": "list", "resource": "pods"})


def may_list_queues(client: BlockingClient) -> bool:
    """Whether this login may list the queues, which belong to no namespace."""
    return _may(client, {"group": names.PREFIX.rstrip("/"), "verb": "list", "resource": "gpuqueues"})


def _may(client: BlockingClient, attributes: dict[str, str]) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return msgspec.json.decode(post_json(client, _REVIEWS, body), type=_Review).status.allowed


def user_name(client: BlockingClient) -> str:
    """How the API server calls this login."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return msgspec.json.decode(post_json(client, _WHO, body), type=_Who).status.userInfo.username
