"""vGPU profiles: NVIDIA names a virtual machine's GPU for the card and the memory it has of it, such as V100-8Q."""

import re
from dataclasses import dataclass

from milligpu.model.errors import BadRequest
from milligpu.model.units import WHOLE, Milli

_MODEL = re.compile(r"(?:GRID|NVIDIA)?[ -]*([A-Z]+\d+\w*)-(\d+)([QABC])", re.IGNORECASE)
# Labels repeat the size for people: v100-8q-8GB. Slides and users also write 8g or 8GB where NVIDIA has 8q.
_LABEL = re.compile(r"(?:grid[_-])?([a-z]+\d+\w*)-(\d{1,3})(?:([abcqg])(?:-(\d{1,3})gb)?|gb)", re.IGNORECASE)
_SERIES_OF_TYPO = {"g": "q", "": "q"}

# GB of cards, by the names that profiles have for them. A vGPU of a card that is not here counts as a whole card.
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
class VgpuProfile:
    """The kind of a virtual GPU: the card, the memory of it, and NVIDIA's series."""

    board: str
    gigabytes: int
    series: str

    @property
    def name(self) -> str:
        """NVIDIA's name in lower case: `v100-8q`."""
        return f"{self.board}-{self.gigabytes}{self.series}"

    @property
    def model(self) -> str:
        """The name as GPUs of this profile have it in their model: `V100-8Q`."""
        return self.name.upper()

    @property
    def label(self) -> str:
        """The value of the node label `vgpu.type`: `v100-8q-8GB`."""
        return f"{self.name}-{self.gigabytes}GB"

    @property
    def milli(self) -> Milli:
        """Its part of the card; a vGPU of an unknown card counts as a whole card."""
        halves = 2 * self.gigabytes or 1  # a profile of 0 GB has half of one
        return (
            Milli(min(WHOLE, WHOLE * halves // (2 * _BOARD_GB[self.board]))) if self.board in _BOARD_GB else WHOLE
        )


def profile_of(model: str) -> VgpuProfile | None:
    """Return the profile of a GPU by its model, or None for a GPU that is a whole card."""
    match = _MODEL.fullmatch(model.strip())
    return VgpuProfile(match[1].lower(), int(match[2]), match[3].lower()) if match else None


def parse_profile(field: str, value: object) -> VgpuProfile:
    """Read a profile as node labels and selectors have it; the size for people must agree with the profile's."""
    match = _LABEL.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[4] not in {None, match[2]}:
        raise BadRequest(field, value, "a vGPU profile such as v100-8q or v100-8q-8GB")
    series = (match[3] or "").lower()
    return VgpuProfile(match[1].lower(), int(match[2]), _SERIES_OF_TYPO.get(series, series))
