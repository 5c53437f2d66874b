"""An admin's orders about single cards, as a node annotation: `milligpu.dev/orders`.

The agent obeys them and never writes them: `{"v":1,"cordoned":{"GPU-…":"why"},"cleared":{"GPU-…":"when"}}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.wire.json import VERSION, Document, decode, encode, refused

_NAME = "orders"


class _Orders(Document, frozen=True):
    cordoned: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    cleared: dict[str, str] = msgspec.field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Orders:
    """What an admin wants, by card."""

    cordoned: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cards to take out, with the reason."""
    cleared: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cards that are sound again in the admin's judgement; a new value says it anew."""

    def cordon(self, uuid: str, reason: str) -> "Orders":
        """Take a card out."""
        return Orders({**self.cordoned, uuid: reason}, self.cleared)

    def uncordon(self, uuid: str, when: str) -> "Orders":
        """Take it in again, whatever was held against it."""
        left = {card: reason for card, reason in self.cordoned.items() if card != uuid}
        return Orders(left, {**self.cleared, uuid: when})


def encode_orders(orders: Orders) -> str:
    """Write the annotation's value."""
    return encode(_Orders(VERSION, dict(orders.cordoned), dict(orders.cleared)))


def decode_orders(text: str | bytes) -> Orders:
    """Read the annotation's value."""
    raw = decode(_NAME, text, _Orders)
    try:
        for uuid in (*raw.cordoned, *raw.cleared):
            parse_uuid("uuid", uuid)
    except BadRequest as error:
        raise refused(_NAME, error) from None
    return Orders(raw.cordoned, raw.cleared)
