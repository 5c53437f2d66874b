"""Services, in place of kube-proxy: listen on each Service's address and forward connections to a ready endpoint.

The cluster routes its range of service addresses to this machine, so this process can listen on each of them. TCP
only. The address of the API server belongs to `forward.py`.
"""

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice

from devcluster.forward import copy_stream

Address = tuple[str, int]
Objects = Mapping[str, dict[str, Any]]
"""Objects as the API sends them, by namespace and name."""

_RETRY_S = 0.5
_OWNER = "kubernetes.io/service-name"
_API_SERVER = "default/kubernetes"


def forwarded(services: Objects, slices: Objects) -> dict[Address, list[Address]]:
    """Each address on which a Service is reached, and the ready endpoints behind it."""
    found: dict[Address, list[Address]] = {}
    for name, service in services.items():
        address: str = service["spec"].get("clusterIP") or "None"
        if name == _API_SERVER or address == "None":
            continue
        for port in service["spec"].get("ports") or ():
            found[address, port["port"]] = list(_endpoints(name, port.get("name") or "", slices))
    return found


def _endpoints(service: str, port_name: str, slices: Objects) -> Iterator[Address]:
    for part in slices.values():
        meta: dict[str, Any] = part["metadata"]
        if f"{meta['namespace']}/{meta.get('labels', {}).get(_OWNER)}" != service:
            continue
        for port in part.get("ports") or ():
            for endpoint in part.get("endpoints") or ():
                if (port.get("name") or "") == port_name and endpoint.get("conditions", {}).get("ready", True):
                    yield from ((host, port["port"]) for host in endpoint["addresses"])


class ServiceForwarder:
    """The Services and endpoints of a cluster as they are now, and a listener for each port."""

    def __init__(self) -> None:
        self._known: dict[type, dict[str, dict[str, Any]]] = {Service: {}, EndpointSlice: {}}
        self._servers: dict[Address, asyncio.Server] = {}
        self._targets: dict[Address, list[Address]] = {}

    async def follow(self, client: Any, kind: "type[Service] | type[EndpointSlice]") -> None:
        """Keep one kind of object up to date until cancelled; `client` is lightkube's."""
        known = self._known[kind]
        while True:
            with suppress(ApiError, OSError):
                async for change, found in client.watch(kind, namespace="*"):
                    data: dict[str, Any] = found.to_dict()
                    name = f"{data['metadata']['namespace']}/{data['metadata']['name']}"
                    if change == "DELETED":
                        known.pop(name, None)
                    else:
                        known[name] = data
                    await self._update()
            await asyncio.sleep(_RETRY_S)

    async def _update(self) -> None:
        self._targets = forwarded(self._known[Service], self._known[EndpointSlice])
        for gone in self._servers.keys() - self._targets.keys():
            self._servers.pop(gone).close()
        for address in self._targets.keys() - self._servers.keys():
            self._servers[address] = await asyncio.start_server(partial(self._serve, address), *address)

    async def _serve(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = self._targets.get(address, [])
        for target in random.sample(targets, len(targets)):
            with suppress(OSError):
                there_reader, there_writer = await asyncio.open_connection(*target)
                await asyncio.gather(copy_stream(reader, there_writer), copy_stream(there_reader, writer))
                return
        writer.close()


async def main(kubeconfig: str) -> None:
    """Forward until killed."""
    client = AsyncClient(config=KubeConfig.from_file(kubeconfig), trust_env=False)
    forwarder = ServiceForwarder()
    await asyncio.gather(forwarder.follow(client, Service), forwarder.follow(client, EndpointSlice))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
