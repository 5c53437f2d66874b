"""The cluster's queues, as admission needs them: pods that name no queue that exists are refused."""

import msgspec

from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Followed, follow_all
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.gpu_queue import NO_QUEUES, GpuQueues
from milligpu.wire.gpu_queue import queues_of_objects
from milligpu.wire.kubernetes import KubeGpuQueue, ObjectList

_list = msgspec.json.Decoder(ObjectList[KubeGpuQueue])


class KnownQueues:
    """Follows the queues; asks the API server before a name is called unknown, because a watch comes later."""

    def __init__(self, api: ApiClient, watch: Followed[KubeGpuQueue]) -> None:
        self._api = api
        self._watch = watch
        self.now: GpuQueues = NO_QUEUES

    async def run(self) -> None:
        async for objects in follow_all(self._watch):
            self.now = queues_of_objects(objects)[0]

    async def refresh(self) -> None:
        """Read all queues; a cluster that does not answer leaves what is known."""
        try:
            self.now = queues_of_objects(_list.decode(await self._api.get(names.QUEUES_PATH)).items)[0]
        except Unavailable:
            return
