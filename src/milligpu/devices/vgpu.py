"""vGPU profiles: a virtual machine's card is named for the physical one and the memory it has of it. Pure."""

import re
from dataclasses import dataclass

from milligpu.model.units import WHOLE, Milli

_NAME = re.compile(r"(?:GRID|NVIDIA)?[ -]*([A-Z]+\d+\w*)-(\d+)([QABC])", re.I)

# GB of the boards, by the names that profiles have for them. A name that is missing makes a card of its own.
_BOARD_GB = {
    **dict.fromkeys(("m6", "m10", "m60", "p4"), 8),
    **dict.fromkeys(("p6", "p100", "p100x", "v100", "v100x", "v100l", "t4", "a2", "a16"), 16),
    **dict.fromkeys(("p40", "rtx6000", "rtx6000p", "rtxa5000", "a10", "a30", "l4"), 24),
    **dict.fromkeys(("v100d", "v100dx", "v100s"), 32),
    **dict.fromkeys(("a100", "a100x"), 40),
    **dict.fromkeys(("rtx8000", "rtx8000p", "rtxa6000", "a40", "l40", "l40s"), 48),
    **dict.fromkeys(("a100d", "a100dx", "h100", "h100xm"), 80),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Such as V100-8Q."""

    board: str
    gigabytes: int
    series: str

    @property
    def label(self) -> str:
        """As nodes are labelled with it and pods select it: `v100-8q-8GB`."""
        return f"{self.board}-{self.gigabytes}{self.series}-{self.gigabytes}GB"

    @property
    def milli(self) -> Milli:
        """Its part of the physical card; of a board that nobody has heard of it counts as a card of its own."""
        halves = 2 * self.gigabytes or 1  # a profile of 0 GB has half of one
        return (
            Milli(min(WHOLE, WHOLE * halves // (2 * _BOARD_GB[self.board]))) if self.board in _BOARD_GB else WHOLE
        )


def profile_of(model: str) -> Profile | None:
    """The profile that a card's name tells; None for a physical card."""
    match = _NAME.fullmatch(model.strip())
    return Profile(match[1].lower(), int(match[2]), match[3].lower()) if match else None
