"""Plugins that hand a card out N times say nothing of sizes: each part is an Nth, and idle time is anybody's."""

from milligpu.model.request import ShareRequest
from milligpu.model.units import WHOLE, Milli, parse_whole


def part_of_card(field: str, value: object, parts: int) -> ShareRequest | None:
    """So many of a card's N equal parts; there, nothing holds anybody to theirs, so the ceiling is the card."""
    count = parse_whole(field, value, 0, parts)
    return ShareRequest(1, Milli(count * WHOLE // parts), limit=WHOLE) if count else None
