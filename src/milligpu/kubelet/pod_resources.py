"""Which container holds which slots: the kubelet's pod-resources API, the truth after the fact."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from milligpu.kubelet import rpc
from milligpu.kubelet._generated import podresources_pb2 as pb
from milligpu.model.errors import Unavailable

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """What one container holds, by resource name."""

    namespace: str
    pod: str
    container: str
    slots: Mapping[str, frozenset[str]]


class PodResources:
    """A connection to the kubelet's pod-resources socket; reconnects by itself when the kubelet restarts."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = rpc.channel(socket)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()

    async def held(self) -> list[Held]:
        """Every container that holds a device now."""
        try:
            method, request = "/v1.PodResourcesLister/List", pb.ListPodResourcesRequest()
            answer = await rpc.call(self._channel, method, request, pb.ListPodResourcesResponse, _TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"kubelet at {self._socket}: {error.code().name}: {error.details()}") from None
        return [
            Held(pod.namespace, pod.name, container.name, _collect(container))
            for pod in answer.pod_resources
            for container in pod.containers
            if container.devices
        ]


def _collect(container: pb.ContainerResources) -> dict[str, frozenset[str]]:
    """The kubelet sends an entry for each device; put those of one resource together."""
    slots: dict[str, set[str]] = {}
    for devices in container.devices:
        slots.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in slots.items()}
