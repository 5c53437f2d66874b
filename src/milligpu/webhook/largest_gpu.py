"""The memory of the cluster's largest GPU, by which admission counts a request for memory alone."""

from collections.abc import Set

from milligpu.kube.watch import Changed, Followed, Relisted
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.units import Mib
from milligpu.wait import in_turns
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.kubernetes import KubeNode


class LargestGpu:
    """Follows the nodes' inventories; a standby has no cluster state, and reviews pods all the same."""

    def __init__(self, nodes: Followed[KubeNode]) -> None:
        self._nodes = nodes
        self._largest: dict[str, tuple[str, Mib]] = {}

    def largest(self) -> Mib | None:
        """Return the memory of the largest GPU, or None while no GPU is known."""
        return max((mib for _, mib in self._largest.values()), default=Mib(0)) or None

    async def run(self) -> None:
        async for news in self._nodes.follow():
            match news:
                case Relisted(items):
                    self._keep({node.metadata.name for node in items})
                    await in_turns(items, self._put)
                case Changed(items):
                    for kind, node in items:
                        self._drop(node) if kind == "DELETED" else self._put(node)

    def _keep(self, listed: Set[str]) -> None:
        for gone in self._largest.keys() - listed:
            del self._largest[gone]

    def _drop(self, node: KubeNode) -> None:
        self._largest.pop(node.metadata.name, None)

    def _put(self, node: KubeNode) -> None:
        text = (node.metadata.annotations or {}).get(names.INVENTORY, "")
        known = self._largest.get(node.metadata.name)
        if known is None or known[0] != text:
            self._largest[node.metadata.name] = (text, _largest(text))


def _largest(text: str) -> Mib:
    try:
        return max((gpu.mib for gpu in decode_inventory(text)), default=Mib(0)) if text else Mib(0)
    except BadFormat:
        return Mib(0)  # the scheduler logs it
