"""Removes the startup taint from new nodes once their agent offers GPUs, in the leader.

The taint comes with the node, from its kubelet or from an autoscaler's template. It keeps pods away that would take
the node's CPU and memory before its GPUs are offered. milligpu itself never writes it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from milligpu.cluster.node_conditions import NodeConditionType
from milligpu.cluster.observed import ObservedNode
from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, ApiClient
from milligpu.model import names
from milligpu.model.errors import Unavailable

# After a conflict with another writer of the node, or while the API server is away.
_RETRY_S = 0.5

log = structlog.get_logger()


def without_startup_taint(node: dict[str, Any]) -> dict[str, Any] | None:
    """Return a merge patch that removes the taint; None if the node does not have it.

    It names the version of the node that was read: a taint that is added meanwhile must not be lost.
    """
    taints: list[dict[str, Any]] = node.get("spec", {}).get("taints", [])
    kept = [taint for taint in taints if taint["key"] != names.AGENT_NOT_READY]
    if kept == taints:
        return None
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": kept}}


class StartupTaints:
    """Follows nodes until their agent is ready."""

    def __init__(self, api: ApiClient, valid: Callable[[], bool]) -> None:
        """`valid` says whether this instance still leads."""
        self._api = api
        self._valid = valid
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def put(self, observed: ObservedNode) -> None:
        """Take over what a node says."""
        name = observed.node.name
        tainted = any(taint.key == names.AGENT_NOT_READY for taint in observed.facts.taints)
        ready = any(each.type is NodeConditionType.AGENT_READY and each.good for each in observed.wanted)
        if tainted and ready:
            self._due[name] = None
            self._wake.set()
        else:
            self._due.pop(name, None)

    def drop(self, name: str) -> None:
        """Forget a node that is gone."""
        self._due.pop(name, None)

    async def run(self) -> None:
        """Remove taints until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for name in tuple(self._due):
                if name in self._due and self._valid():
                    await self._remove(name)

    async def _remove(self, name: str) -> None:
        path = f"/api/v1/nodes/{name}"
        try:
            patch = without_startup_taint(msgspec.json.decode(await self._api.get(path)))
            if patch is not None:
                await self._api.send("PATCH", path, patch, kind=MERGE_PATCH, accept=METADATA_ONLY)
                log.info("Removed startup taint", node=name)
        except Unavailable as error:
            log.info("Could not remove startup taint", node=name, error=error.message)
            await asyncio.sleep(_RETRY_S)
            self._wake.set()  # `put` or `drop` takes it off the list
            return
        self._due.pop(name, None)
