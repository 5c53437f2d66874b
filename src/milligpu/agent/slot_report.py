"""Reports freed device slots on the Node object before the kubelet does.

The kubelet writes the node's status every ten seconds. Until then kube-scheduler does not know of slots that a pod
released by shrinking. Only a number above zero that the kubelet has reported is raised, and only if it is still the
same: a kubelet that starts reports zero until it has a device plugin, and rejects the pods placed there before.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from milligpu.kube.api import JSON_PATCH, ApiClient
from milligpu.kubelet.device_plugin import DevicePlugin
from milligpu.model.errors import Unavailable
from milligpu.model.units import parse_quantity
from milligpu.wire.kubernetes import KubeNode

# The kubelet processes a list of thousands of slots within milliseconds.
_HEARD_S = 0.3
# If the kubelet wrote at the same moment, the next attempt sees what it wrote.
_ATTEMPTS = 3
_RETRY_S = 0.5

log = structlog.get_logger()


class SlotReporter:
    """Raises the node's allocatable slots when the kubelet has received more."""

    def __init__(
        self,
        api: ApiClient,
        node: str,
        *,
        seen: Callable[[], KubeNode | None],
        plugins: Callable[[], Mapping[str, DevicePlugin]],
    ) -> None:
        """`seen` returns the Node object as last seen, `plugins` the plugin of each resource."""
        self._api = api
        self._path = f"/api/v1/nodes/{node}/status"
        self._seen = seen
        self._plugins = plugins
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """Compare again, because a plugin sent its slots to the kubelet."""
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(_HEARD_S)
            await self._report()

    async def _report(self) -> None:
        for _ in range(_ATTEMPTS):
            patch = self._patch()
            if not patch:
                return
            try:
                await self._api.send("PATCH", self._path, patch, kind=JSON_PATCH)
            except Unavailable as error:
                log.info("Could not report freed slots, the kubelet will", error=error.message)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _patch(self) -> list[dict[str, str]]:
        node = self._seen()
        reported = (node.status.allocatable if node else None) or {}
        sent = {resource: plugin.sent_count for resource, plugin in self._plugins().items()}
        return [
            change
            for resource, count in sent.items()
            if 0 < parse_quantity(resource, reported.get(resource, "0")) < count
            for change in _raise(resource, reported[resource], str(count))
        ]


def _raise(resource: str, before: str, after: str) -> list[dict[str, str]]:
    key = resource.replace("/", "~1")
    allocatable, capacity = (f"/status/{field}/{key}" for field in ("allocatable", "capacity"))
    return [
        {"op": "test", "path": allocatable, "value": before},
        {"op": "replace", "path": allocatable, "value": after},
        {"op": "replace", "path": capacity, "value": after},
    ]
