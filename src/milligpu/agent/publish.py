"""What the node's agent writes onto its Node object: the inventory, labels, and pods that are to be evicted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from milligpu.agent.node_labels import node_labels, vgpu_type_label
from milligpu.kube.api import MERGE_PATCH, ApiClient
from milligpu.kube.watch import Changed, Relisted, Watch
from milligpu.model import names
from milligpu.model.errors import BadFormat, Unavailable
from milligpu.model.gpu import Gpu
from milligpu.wire.driver import encode_driver
from milligpu.wire.evictions import EvictionRequest, encode_evictions
from milligpu.wire.gpu_settings import GpuSettings, decode_gpu_settings
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.kubernetes import KubeNode
from milligpu.wire.node_layout import NO_LAYOUT, NodeLayout, decode_node_layout

_RETRY_S = 0.5

log = structlog.get_logger()


class NodePublisher:
    """Keeps inventory and labels of the Node object up to date, even if another program changes them."""

    def __init__(
        self,
        api: ApiClient,
        node: str,
        *,
        driver: str,
        listen: str,
        gpus: Callable[[], Mapping[str, Gpu]],
        evictions: Callable[[], Sequence[EvictionRequest]],
        apply_settings: Callable[[GpuSettings], None],
        apply_layout: Callable[[NodeLayout], None] = lambda _layout: None,
    ) -> None:
        """Both functions are called with what the node says whenever the node changes."""
        self._api = api
        self._path = f"/api/v1/nodes/{node}"
        self._watch = Watch(api, "/api/v1/nodes", KubeNode, fields=f"metadata.name={node}", cached=True)
        self._driver = driver
        self._listen = listen
        self._gpus = gpus
        self._evictions = evictions
        self._apply_settings = apply_settings
        self._apply_layout = apply_layout
        self._wake = asyncio.Event()
        self.seen: KubeNode | None = None
        """The Node object as last seen."""
        self._metadata: tuple[dict[str, str] | None, dict[str, str] | None] | None = None
        self.published = asyncio.Event()

    def changed(self) -> None:
        """Write again, because the GPUs changed, or the pods to evict."""
        self._wake.set()

    async def run(self) -> None:
        """Follow and write the Node object, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._write())

    async def _follow(self) -> None:
        async for news in self._watch.follow():
            match news:
                case Relisted(items):
                    found = items
                case Changed(items):
                    found = [node for kind, node in items if kind != "DELETED"]
            if found:
                self.seen = found[-1]
                self._on_node(self.seen)

    def _on_node(self, node: KubeNode) -> None:
        """Compare annotations and labels only: a kubelet updates its node all the time."""
        metadata = (node.metadata.annotations, node.metadata.labels)
        if metadata != self._metadata:
            self._metadata = metadata
            self._read_settings(node)
            self._wake.set()

    def _read_settings(self, node: KubeNode) -> None:
        text = names.gpu_settings_text(node.metadata.annotations)
        try:
            self._apply_settings(decode_gpu_settings(text) if text else GpuSettings())
        except BadFormat as error:
            # A cordoned GPU must not be offered because of a typo about another one.
            log.warning("Could not parse GPU settings, keeping the previous ones", error=error.message)
        layout = (node.metadata.annotations or {}).get(names.LAYOUT)
        try:
            self._apply_layout(decode_node_layout(layout) if layout else NO_LAYOUT)
        except BadFormat as error:
            log.warning("Could not parse layout, keeping the previous one", error=error.message)

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
                log.warning("Could not write inventory", error=error.message)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
                continue
            self.seen = msgspec.json.decode(answer, type=KubeNode)
            self.published.set()

    def _patch(self) -> dict[str, object] | None:
        """Return the patch; None if nothing has to change."""
        if self.seen is None:
            return None
        meta = self.seen.metadata
        gpus, evictions = list(self._gpus().values()), self._evictions()
        present, annotations = meta.labels or {}, meta.annotations or {}
        vgpu_type, written = vgpu_type_label(
            gpus, present.get(names.VGPU_TYPE), annotations.get(names.VGPU_TYPE_WRITTEN)
        )
        labels = node_labels(gpus, self._driver, present) | vgpu_type
        notes: dict[str, str | None] = {
            names.INVENTORY: encode_inventory(gpus),
            names.DRIVER: encode_driver(gpus),
            names.AGENT: self._listen,
            names.EVICT: encode_evictions(evictions) if evictions else None,
            names.VGPU_TYPE_WRITTEN: written,
        }
        if _has(annotations, notes) and _has(present, labels):
            self.published.set()
            return None
        metadata: dict[str, object] = {"annotations": notes, "labels": labels}
        if not _has(present, vgpu_type):
            metadata["resourceVersion"] = meta.resourceVersion  # refused if somebody else has written it meanwhile
        return {"metadata": metadata}


def _has(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(there.get(key) == value for key, value in wanted.items())
