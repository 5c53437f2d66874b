"""The pods of this node, as the API server has them."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from milligpu.agent.attach_plan import NodePod
from milligpu.dialects.pod import containers
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Changed, Relisted, Watch
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.request import PodRef
from milligpu.wire.kubernetes import KubePod, ObjectList

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_FINISHED = frozenset({"Succeeded", "Failed"})


def read_node_pod(pod: KubePod) -> NodePod:
    """Read what the agent needs of a pod."""
    meta = pod.metadata
    found = list(containers(pod.as_dict()))
    return NodePod(
        PodRef(meta.namespace, meta.name, meta.uid),
        kinds={name: kind for name, kind, _ in found},
        grant=(meta.annotations or {}).get(names.GRANT),
        finished=pod.status.phase in _FINISHED,
        owned=any(owner.controller for owner in meta.ownerReferences or ()),
        capabilities={name: asked for name, _, each in found if (asked := _capabilities(each))},
        may_strand=_may_strand(pod),
    )


def _capabilities(container: Mapping[str, Any]) -> str:
    env = msgspec.convert(container.get("env") or [], list[_Variable])
    return next((each.value for each in env if each.name == _CAPABILITIES), "")


class _Variable(msgspec.Struct):
    name: str = ""
    value: str = ""


def _may_strand(pod: KubePod) -> bool:
    once = msgspec.json.decode(pod.spec, type=_Restart).restartPolicy == "Never"
    waits = pod.status.phase == "Pending" and pod.metadata.deletionTimestamp is None
    return once and waits and not any(each.has_run for each in pod.status.containerStatuses or ())


class _Restart(msgspec.Struct):
    restartPolicy: str = "Always"


class NodePods:
    """Follows the pods of one node, by uid."""

    def __init__(self, api: ApiClient, node: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._fields = f"spec.nodeName={node}"
        self._watch = Watch(api, "/api/v1/pods", KubePod, fields=self._fields, cached=True)
        self._list = msgspec.json.Decoder(ObjectList[KubePod])
        self._changed = changed
        self.watched: dict[str, NodePod] = {}
        """The pods that the watch has shown."""
        self._ahead: dict[str, NodePod] = {}
        self.listed = asyncio.Event()
        """Set when all pods were listed: until then no pod counts as gone."""

    @property
    def known(self) -> dict[str, NodePod]:
        """All pods, with those that were read before the watch showed them."""
        return self._ahead | self.watched

    async def follow(self) -> None:
        """Follow the pods, until cancelled."""
        async for news in self._watch.follow():
            match news:
                case Relisted(items):
                    self.watched = {pod.metadata.uid: read_node_pod(pod) for pod in items}
                    self.listed.set()
                case Changed(items):
                    for kind, pod in items:
                        if kind == "DELETED":
                            self.watched.pop(pod.metadata.uid, None)
                        else:
                            self.watched[pod.metadata.uid] = read_node_pod(pod)
            self._changed()

    async def look(self, missing: Collection[str]) -> bool:
        """Read pods that the watch has not shown yet; return whether the API server answered.

        The answer counts only until the next call: the watch may be ahead of it, and not mention a pod again.
        """
        self._ahead = {}
        if not missing:
            return True
        try:
            text = await self._api.get(f"/api/v1/pods?fieldSelector={self._fields}")
        except Unavailable:
            return False
        found = (pod for pod in self._list.decode(text).items if pod.metadata.uid in missing)
        self._ahead = {pod.metadata.uid: read_node_pod(pod) for pod in found}
        return True

    def by_name(self) -> dict[tuple[str, str], frozenset[str]]:
        """Uids by namespace and name; there are two of one name while the first terminates."""
        found: dict[tuple[str, str], frozenset[str]] = {}
        for pod in self.known.values():
            key = (pod.ref.namespace, pod.ref.name)
            found[key] = found.get(key, frozenset()) | {pod.ref.uid}
        return found
