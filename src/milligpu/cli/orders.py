"""Changing an admin's orders about one card, on the Node object that has it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from milligpu.kube import config
from milligpu.kube.api import MERGE_PATCH, Api
from milligpu.kube.objects import Listed, Node
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.orders import Orders, decode_orders, encode_orders

_SHOWN_MAX = 8


def change_orders(gpu: str, change: Callable[[Orders, str], Orders], kubeconfig: str | None) -> str:
    """Find the card's node, and write the changed orders there; the node's name."""
    return asyncio.run(_change(gpu, change, kubeconfig))


async def _change(gpu: str, change: Callable[[Orders, str], Orders], kubeconfig: str | None) -> str:
    async with Api(config.find(kubeconfig)) as api:
        node = _find(msgspec.json.decode(await api.get("/api/v1/nodes"), type=Listed[Node]).items, gpu)
        text = (node.metadata.annotations or {}).get(names.ORDERS)
        orders = encode_orders(change(decode_orders(text) if text else Orders(), gpu))
        patch = {"metadata": {"annotations": {names.ORDERS: orders}}}
        await api.send("PATCH", f"/api/v1/nodes/{node.metadata.name}", patch, kind=MERGE_PATCH)
        return node.metadata.name


def _find(nodes: list[Node], gpu: str) -> Node:
    known: list[str] = []
    for node in nodes:
        cards = _cards(node)
        if gpu in cards:
            return node
        known += cards
    shown = ", ".join(known[:_SHOWN_MAX]) + (", …" if len(known) > _SHOWN_MAX else "")
    raise BadRequest("gpu", gpu, f"the UUID of a GPU in this cluster: {shown or 'there is none'}")


def _cards(node: Node) -> list[str]:
    text = (node.metadata.annotations or {}).get(names.INVENTORY)
    try:
        return [card.uuid for card in decode_inventory(text)] if text else []
    except BadFormat:
        return []


def moment() -> str:
    """Now, as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
