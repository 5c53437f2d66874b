"""The cluster's classes, as admission needs them: pods that name no class that exists are refused."""

import msgspec

from milligpu.cluster.read import read_classes
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Followed, follow_all
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses
from milligpu.wire.kubernetes import KubeGpuClass, ObjectList

_list = msgspec.json.Decoder(ObjectList[KubeGpuClass])


class KnownClasses:
    """Follows the classes; asks the API server before a name is called unknown, because a watch comes later."""

    def __init__(self, api: ApiClient, watch: Followed[KubeGpuClass]) -> None:
        self._api = api
        self._watch = watch
        self.now: GpuClasses = NO_CLASSES

    async def run(self) -> None:
        async for objects in follow_all(self._watch):
            self.now = read_classes(objects)

    async def refresh(self) -> None:
        """Read all classes; a cluster that does not answer leaves what is known."""
        try:
            self.now = read_classes(_list.decode(await self._api.get(names.CLASSES_PATH)).items)
        except Unavailable:
            return
