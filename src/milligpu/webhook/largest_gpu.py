"""The memory of the cluster's largest card: by it admission counts memory that comes without a share."""

from milligpu.kube import objects
from milligpu.kube.api import Api
from milligpu.kube.watch import All, Changes, Watch
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.units import Mib
from milligpu.wire.inventory import decode_inventory


class Cards:
    """Follows the nodes' inventories; a standby has no books, and reviews pods all the same."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._largest: dict[str, tuple[str, Mib]] = {}

    def largest(self) -> Mib | None:
        """None while no card is known."""
        return max((mib for _, mib in self._largest.values()), default=Mib(0)) or None

    async def run(self) -> None:
        """Until cancelled."""
        async for news in Watch(self._api, "/api/v1/nodes", objects.Node).follow():
            match news:
                case All(items):
                    self._largest.clear()
                    for node in items:
                        self._put(node)
                case Changes(items):
                    for kind, node in items:
                        self._drop(node) if kind == "DELETED" else self._put(node)

    def _drop(self, node: objects.Node) -> None:
        self._largest.pop(node.metadata.name, None)

    def _put(self, node: objects.Node) -> None:
        text = (node.metadata.annotations or {}).get(names.INVENTORY, "")
        known = self._largest.get(node.metadata.name)
        if known is None or known[0] != text:
            self._largest[node.metadata.name] = (text, _largest(text))


def _largest(text: str) -> Mib:
    try:
        return max((gpu.mib for gpu in decode_inventory(text)), default=Mib(0)) if text else Mib(0)
    except BadFormat:
        return Mib(0)  # who keeps the books says so
