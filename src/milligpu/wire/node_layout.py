"""What the present layout asks of a node's GPUs, as a node annotation: `milligpu.dev/layout`.

The scheduler service writes it and the node's agent applies it:
`{"v":1,"calendar":"campus","layout":"day","cards":[{"gpus":"model=V100","policy":"equal","limit":500}]}`.
"""

from dataclasses import dataclass

import msgspec

from milligpu.model.card_rules import CardRule
from milligpu.model.errors import BadRequest
from milligpu.model.policy import SharePolicy
from milligpu.model.requirements import ANY, parse_requirements
from milligpu.model.units import WHOLE, Milli, parse_whole
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

NODE_LAYOUT = DocumentFormat("node layout", version=1)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """What a calendar asks of one node now."""

    calendar: str = ""
    layout: str = ""
    cards: tuple[CardRule, ...] = ()


NO_LAYOUT = NodeLayout()


class _Card(DocumentPart, frozen=True):
    gpus: str = ""
    policy: SharePolicy | None = None
    reserved: int | None = None
    limit: int | None = None


class _NodeLayout(Document, frozen=True):
    calendar: str
    layout: str
    cards: list[_Card] = msgspec.field(default_factory=list[_Card])


def encode_node_layout(found: NodeLayout) -> str:
    """Write the annotation's value."""
    cards = [_Card(str(each.gpus), each.policy, each.reserved, each.limit) for each in found.cards]
    return encode(_NodeLayout(NODE_LAYOUT.version, found.calendar, found.layout, cards))


def decode_node_layout(text: str | bytes) -> NodeLayout:
    """Read the annotation's value."""
    raw = NODE_LAYOUT.decode(text, _NodeLayout)
    try:
        return NodeLayout(raw.calendar, raw.layout, tuple(map(_rule, raw.cards)))
    except BadRequest as error:
        raise NODE_LAYOUT.refuse(error) from None


def _rule(raw: _Card) -> CardRule:
    return CardRule(
        parse_requirements("gpus", raw.gpus) if raw.gpus else ANY,
        raw.policy,
        None if raw.reserved is None else Milli(parse_whole("reserved", raw.reserved, 0, WHOLE)),
        None if raw.limit is None else Milli(parse_whole("limit", raw.limit, 1, WHOLE)),
    )
