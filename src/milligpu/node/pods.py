"""The pods of this node, as the API server has them."""

import asyncio
from collections.abc import Callable

import msgspec

from milligpu.dialects.pod import containers
from milligpu.kube.api import Api
from milligpu.kube.objects import Listed, Pod
from milligpu.kube.watch import All, Changes, Watch
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.node.attach import PodView

_FINISHED = frozenset({"Succeeded", "Failed"})


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
        self._fields = f"spec.nodeName={node}"
        self._watch = Watch(api, "/api/v1/pods", Pod, fields=self._fields)
        self._list = msgspec.json.Decoder(Listed[Pod])
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

    async def refresh(self) -> bool:
        """Ask for pods that the watch has yet to show; whether the API server answered."""
        try:
            text = await self._api.get(f"/api/v1/pods?fieldSelector={self._fields}")
        except Unavailable:
            return False
        for pod in self._list.decode(text).items:
            self.known.setdefault(pod.metadata.uid, view_of(pod))
        return True

    def by_name(self) -> dict[tuple[str, str], frozenset[str]]:
        """Uids by namespace and name; two of one name are possible while the first is going."""
        found: dict[tuple[str, str], frozenset[str]] = {}
        for pod in self.known.values():
            key = (pod.namespace, pod.name)
            found[key] = found.get(key, frozenset()) | {pod.uid}
        return found
