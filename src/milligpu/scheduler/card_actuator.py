"""Layouts of cards: written onto nodes as an annotation, which each node's agent applies."""

from collections.abc import Mapping

import msgspec
import structlog

from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, ApiClient, ApiRefused
from milligpu.layouts.actuator import StepFailed
from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.layouts.plan import LayoutNode, missing_settings
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.wire.gpu_settings import GpuSettings, decode_gpu_settings
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.kubernetes import KubeNode
from milligpu.wire.node_layout import NO_LAYOUT, decode_node_layout

_GONE = 404
# Answers that say that the same request will be refused again.
_FINAL = frozenset({400, 403, 422})

log = structlog.get_logger()


def layout_node(node: KubeNode) -> LayoutNode:
    """Return what layouts read of a node."""
    notes = node.metadata.annotations or {}
    try:
        gpus = decode_inventory(notes.get(names.INVENTORY, "")) if names.INVENTORY in notes else ()
    except BadFormat:
        gpus = ()
    settings = names.gpu_settings_text(notes)
    try:
        admins = decode_gpu_settings(settings) if settings else GpuSettings()
    except BadFormat:
        admins = GpuSettings()
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())
    return LayoutNode(
        node.metadata.name, dict(node.metadata.labels or {}), gpus, notes.get(names.LAYOUT, ""), admins, ready
    )


class CardActuator:
    """Writes layouts onto nodes, and sees from the inventories whether the agents apply them."""

    def __init__(self, api: ApiClient, nodes: Mapping[str, LayoutNode]) -> None:
        """`nodes` are all nodes with GPUs, as they are now."""
        self._api = api
        self._nodes = nodes

    async def do(self, step: SwitchStep) -> str:
        if step.kind is StepKind.APPLY:
            return await self._write_all(step.targets, step.after)
        return self._missing(step)

    async def undo(self, step: SwitchStep) -> str:
        return await self._write_all(step.targets, step.before) if step.kind is StepKind.APPLY else ""

    async def _write_all(self, targets: tuple[str, ...], text: str) -> str:
        for name in targets:
            node = self._nodes.get(name)
            if node is not None and node.text != text:
                await self.write(name, text)
        return ""

    async def write(self, name: str, text: str) -> None:
        """Write or, with an empty text, remove the annotation of one node."""
        body = {"metadata": {"annotations": {names.LAYOUT: text or None}}}
        try:
            await self._api.send("PATCH", f"/api/v1/nodes/{name}", body, kind=MERGE_PATCH, accept=METADATA_ONLY)
        except ApiRefused as error:
            if error.status in _FINAL:
                raise StepFailed(error.message) from None
            if error.status != _GONE:
                raise
        log.info("Wrote layout of node", node=name, layout=_layout_name(text))

    def _missing(self, step: SwitchStep) -> str:
        wanted = decode_node_layout(step.after) if step.after else NO_LAYOUT
        found: list[str] = []
        for name in step.targets:
            node = self._nodes.get(name)
            # A node that is down follows when it is back: its agent reads the annotation first.
            if node is not None and node.ready:
                found += [f"{name}: {each}" for each in missing_settings(node, wanted)]
        return "" if not found else found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def _layout_name(text: str) -> str:
    try:
        return decode_node_layout(text).layout if text else ""
    except (BadFormat, msgspec.DecodeError):
        return "?"
