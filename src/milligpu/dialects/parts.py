"""Device plugins that offer one GPU N times: each of the N parts is an Nth, and may use the GPU's idle time."""

from milligpu.dialects.settings import DialectSetting
from milligpu.model.request import ShareRequest
from milligpu.model.units import WHOLE, Milli, parse_whole

PARTS = DialectSetting(
    "parts",
    10,
    range(1, WHOLE + 1),
    "Number of equal shares per GPU for deepomatic.com/shared-gpu and nvidia.com/gpu.shared.",
)


def equal_part(field: str, value: object, parts: int) -> ShareRequest | None:
    """Read a number of a GPU's equal parts. Those plugins limit nobody, so the limit is the whole GPU."""
    count = parse_whole(field, value, 0, parts)
    return ShareRequest(1, Milli(count * WHOLE // parts), limit=WHOLE) if count else None
