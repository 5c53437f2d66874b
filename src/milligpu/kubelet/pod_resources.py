"""The kubelet's pod-resources API: which container holds which device slots."""

from pathlib import Path

import grpc.aio

from milligpu.kubelet import rpc
from milligpu.kubelet._generated import podresources_pb2 as pb
from milligpu.kubelet.held_devices import HeldDevices
from milligpu.model.errors import Unavailable
from milligpu.model.request import PodRef

_TIMEOUT_S = 10.0


class PodResources:
    """A connection to the kubelet's pod-resources socket; reconnects by itself when the kubelet restarts."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = rpc.channel(socket)

    async def close(self) -> None:
        await self._channel.close()

    async def held(self) -> list[HeldDevices]:
        try:
            method, request = "/v1.PodResourcesLister/List", pb.ListPodResourcesRequest()
            answer = await rpc.call(self._channel, method, request, pb.ListPodResourcesResponse, _TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"kubelet at {self._socket}: {error.code().name}: {error.details()}") from None
        return [
            HeldDevices(PodRef(pod.namespace, pod.name), container.name, resource, slots)
            for pod in answer.pod_resources
            for container in pod.containers
            for resource, slots in _slots(container).items()
        ]


def _slots(container: pb.ContainerResources) -> dict[str, frozenset[str]]:
    """Collect the slots of each resource, because the kubelet sends one entry per device."""
    slots: dict[str, set[str]] = {}
    for devices in container.devices:
        slots.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in slots.items()}
