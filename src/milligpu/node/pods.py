"""The pods of this node, as the API server has them."""

import asyncio
from collections.abc import Callable, Collection

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
    """Follows the pods of one node, by uid."""

    def __init__(self, api: Api, node: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._fields = f"spec.nodeName={node}"
        self._watch = Watch(api, "/api/v1/pods", Pod, fields=self._fields)
        self._list = msgspec.json.Decoder(Listed[Pod])
        self._changed = changed
        self.watched: dict[str, PodView] = {}
        """As the watch has them."""
        self._ahead: dict[str, PodView] = {}
        self.listed = asyncio.Event()
        """Set when the watch has shown all: until then nobody is gone."""

    @property
    def known(self) -> dict[str, PodView]:
        """All of them, those included that the watch has yet to show."""
        return self._ahead | self.watched

    async def follow(self) -> None:
        """Until cancelled."""
        async for news in self._watch.follow():
            match news:
                case All(items):
                    self.watched = {pod.metadata.uid: view_of(pod) for pod in items}
                    self.listed.set()
                case Changes(items):
                    for kind, pod in items:
                        if kind == "DELETED":
                            self.watched.pop(pod.metadata.uid, None)
                        else:
                            self.watched[pod.metadata.uid] = view_of(pod)
            self._changed()

    async def look(self, missing: Collection[str]) -> bool:
        """Ask for pods that the watch has yet to show; whether the API server answered.

        The answer counts until the next look only: the watch may be ahead of it and say no more of a pod.
        """
        self._ahead = {}
        if not missing:
            return True
        try:
            text = await self._api.get(f"/api/v1/pods?fieldSelector={self._fields}")
        except Unavailable:
            return False
        found = (pod for pod in self._list.decode(text).items if pod.metadata.uid in missing)
        self._ahead = {pod.metadata.uid: view_of(pod) for pod in found}
        return True

    def by_name(self) -> dict[tuple[str, str], frozenset[str]]:
        """Uids by namespace and name; two of one name are possible while the first is going."""
        found: dict[tuple[str, str], frozenset[str]] = {}
        for pod in self.known.values():
            key = (pod.namespace, pod.name)
            found[key] = found.get(key, frozenset()) | {pod.uid}
        return found
