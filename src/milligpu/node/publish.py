"""What the node says about itself: the inventory and the labels, on its Node object."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from milligpu.kube.api import MERGE_PATCH, Api
from milligpu.kube.objects import Node
from milligpu.kube.watch import All, Changes, Watch
from milligpu.model import names
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.model.gpu import Gpu
from milligpu.node.labels import labels
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.orders import Orders, decode_orders

_RETRY_S = 0.5

log = structlog.get_logger()


class Publisher:
    """Keeps the Node object in step with the cards, whoever else writes to it."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        driver: str,
        listen: str,
        gpus: Callable[[], Mapping[str, Gpu]],
        obey: Callable[[Orders], None],
    ) -> None:
        """`obey` is told what an admin wants of single cards."""
        self._api = api
        self._path = f"/api/v1/nodes/{node}"
        self._watch = Watch(api, "/api/v1/nodes", Node, fields=f"metadata.name={node}")
        self._driver = driver
        self._listen = listen
        self._gpus = gpus
        self._obey = obey
        self._wake = asyncio.Event()
        self._seen: Node | None = None
        self._told: tuple[dict[str, str] | None, dict[str, str] | None] | None = None
        self.published = asyncio.Event()

    def changed(self) -> None:
        """The cards changed."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._write())

    async def _follow(self) -> None:
        async for news in self._watch.follow():
            match news:
                case All(items):
                    found = items
                case Changes(items):
                    found = [node for kind, node in items if kind != "DELETED"]
            if found:
                self._seen = found[-1]
                self._on_node(self._seen)

    def _on_node(self, node: Node) -> None:
        """A kubelet reports its node all the time; only what we read or write there matters."""
        told = (node.metadata.annotations, node.metadata.labels)
        if told != self._told:
            self._told = told
            self._read_orders(node)
            self._wake.set()

    def _read_orders(self, node: Node) -> None:
        text = (node.metadata.annotations or {}).get(names.ORDERS)
        try:
            self._obey(decode_orders(text) if text else Orders())
        except BadFormat as error:
            # A card that an admin took out must not come back because of a typo about another.
            log.warning("an admin's orders do not read and are left as they were", error=error.message)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            patch = self._patch()
            if patch is None:
                continue
            try:
                answer = await self._api.send("PATCH", self._path, patch, kind=MERGE_PATCH)
            except Unavailable as error:
                log.warning("the inventory was not written", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
                continue
            self._seen = msgspec.json.decode(answer, type=Node)
            self.published.set()

    def _patch(self) -> dict[str, object] | None:
        """What has to change; None when all is well."""
        if self._seen is None:
            return None
        meta = self._seen.metadata
        gpus = list(self._gpus().values())
        notes = {names.INVENTORY: encode_inventory(gpus), names.AGENT: self._listen}
        wanted = labels(gpus, self._driver)
        if _has(meta.annotations or {}, notes) and _has(meta.labels or {}, wanted):
            self.published.set()
            return None
        return {"metadata": {"annotations": notes, "labels": wanted}}


def _has(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(there.get(key) == value for key, value in wanted.items())
