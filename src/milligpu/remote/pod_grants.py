"""Whose a pod's token is, and what its grant says: asked of the API server, for a GPU server of a cluster."""

from dataclasses import dataclass
from typing import Any

import msgspec

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.model import names
from milligpu.model.attach import server_node
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.grant import Grant
from milligpu.model.request import PodRef
from milligpu.remote.tokens import TokenRefused
from milligpu.wire.grant import decode_grant
from milligpu.wire.kubernetes import KubePod, decode_pod

AUDIENCE = "milligpu"
_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT = "system:serviceaccount:"
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
_NOT_FOUND = 404
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class GrantedPod:
    """A pod that was identified by its token, with its grant."""

    pod: PodRef
    grant: Grant


class _UserInfo(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)
    audiences: list[str] = msgspec.field(default_factory=list[str])


class _Review(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


class PodGrants:
    """Reads grants of pods for one GPU server."""

    def __init__(self, api: ApiClient, server: str) -> None:
        self._api = api
        self._server = server

    async def of_token(self, token: str) -> GrantedPod:
        """Return the pod that a projected token belongs to, and its grant, which must be for this server."""
        pod = await self._identify(token)
        found = await self._read(pod)
        if found is None or found.status.phase in _ENDED:
            raise TokenRefused("the token of a pod that runs")
        return GrantedPod(pod, self._grant(found))

    async def is_running(self, pod: PodRef) -> bool:
        """Whether the pod still runs; also where the API server does not say."""
        found = await self._read(pod)
        return found is not None and found.status.phase not in _ENDED

    async def _identify(self, token: str) -> PodRef:
        review: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        status = msgspec.json.decode(await self._api.send("POST", _REVIEWS, review), type=_Review).status
        if not status.authenticated or AUDIENCE not in status.audiences:
            raise TokenRefused(
                f"a token that the cluster issued for the audience {AUDIENCE}, and that has not expired"
            )
        name, uid = (status.user.extra.get(key, [""])[0] for key in (_POD_NAME, _POD_UID))
        account = status.user.username.removeprefix(_ACCOUNT)
        if account == status.user.username or not name or not uid:
            raise TokenRefused("a token of a pod's service account, projected into the pod")
        return PodRef(account.partition(":")[0], name, uid)

    async def _read(self, pod: PodRef) -> KubePod | None:
        """Return the pod; None if it is gone, or is another pod of the same name."""
        try:
            found = decode_pod(await self._api.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"))
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return found if found.metadata.uid == pod.uid else None

    def _grant(self, pod: KubePod) -> Grant:
        text = (pod.metadata.annotations or {}).get(names.GRANT)
        if text is None:
            raise TokenRefused("the token of a pod with a grant")
        try:
            grant = decode_grant(text)
        except BadFormat as error:
            raise TokenRefused(f"the token of a pod whose grant this server can read ({error.message})") from None
        if grant.uid != pod.metadata.uid or grant.node != server_node(self._server):
            raise TokenRefused(f"the token of a pod whose grant names the GPU server {self._server}")
        return grant


def shares_of(grant: Grant, container: str) -> tuple[int, int, int, bool]:
    """Return milli, MiB and limit of each GPU of a container, and whether it has whole GPUs."""
    shares = grant.containers.get(container)
    if not shares:
        want = f"a container with a share: {', '.join(grant.containers)}"
        raise BadRequest("container", container, want)
    first = shares[0].share
    return first.milli, first.mib, first.limit, first.whole
