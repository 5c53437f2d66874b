"""The pods of this node, as the API server has them."""

import asyncio
from collections.abc import Callable

import msgspec

from milligpu.dialects.pod import containers
from milligpu.kube.api import Api, Refused
from milligpu.kube.objects import Pod
from milligpu.kube.watch import All, Changes, Watch
from milligpu.model import names
from milligpu.model.errors import MilligpuError
from milligpu.node.attach import PodView

_FINISHED = frozenset({"Succeeded", "Failed"})
_NOT_FOUND = 404


def view_of(pod: Pod) -> PodView:
    """What matters about a pod."""
    meta = pod.metadata
    return PodView(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        kinds={name: kind for name, kind, _ in containers(pod.as_dict())},
        grant=(meta.annotations or {}).get(names.GRANT),
        finished=pod.status.phase in _FINISHED,
        owned=any(owner.controller for owner in meta.ownerReferences or ()),
    )


class NodePods:
    """Follows the pods of one node; `known` is by uid and empty until the first list has come."""

    def __init__(self, api: Api, node: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._watch = Watch(api, "/api/v1/pods", Pod, fields=f"spec.nodeName={node}")
        self._changed = changed
        self.known: dict[str, PodView] = {}
        self.listed = asyncio.Event()
        """Set when `known` is complete: until then nobody is gone."""

    async def follow(self) -> None:
        """Until cancelled."""
        async for news in self._watch.follow():
            match news:
                case All(items):
                    self.known = {pod.metadata.uid: view_of(pod) for pod in items}
                    self.listed.set()
                case Changes(items):
                    for kind, pod in items:
                        if kind == "DELETED":
                            self.known.pop(pod.metadata.uid, None)
                        else:
                            self.known[pod.metadata.uid] = view_of(pod)
            self._changed()

    async def ask(self, namespace: str, name: str) -> None:
        """Look one pod up, where the kubelet was faster than our watch."""
        try:
            text = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except Refused as error:
            if error.status == _NOT_FOUND:
                return
            raise
        except MilligpuError:
            return
        pod = msgspec.json.decode(text, type=Pod)
        self.known[pod.metadata.uid] = view_of(pod)
