"""How much of all GPUs is allocated, active and effective, and what is stranded and why. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from milligpu.model.units import WHOLE
from milligpu.status.picture import Picture, shares_by_gpu, used_of_card
from milligpu.wire.status import GpuStatus

# A share below this fraction of a card in use counts as not active: a process that only has a context open.
ACTIVE_MIN = 0.01
_OK = "ok"


@dataclass(frozen=True, slots=True)
class Funnel:
    """In cards: each is a part of the one before."""

    total: float
    allocated: float
    active: float
    """Shares whose holder used the GPU within the last seconds."""
    effective: float
    """What was really used."""
    unmeasured: float
    """Allocated shares that nobody measures; they are in no later number."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """Free compute that no request can get, for one reason."""

    reason: str
    message: str
    cards: float
    gpus: Sequence[str]
    """UUIDs."""


def funnel(picture: Picture) -> Funnel:
    """Count all GPUs."""
    total = sum(gpu.milli for gpu in picture.gpus) / WHOLE
    allocated = sum(use.milli for use in picture.shares) / WHOLE
    measured = [use for use in picture.shares if use.utilization is not None]
    active = sum(use.milli for use in measured if (use.utilization or 0.0) >= ACTIVE_MIN) / WHOLE
    on = shares_by_gpu(picture)
    effective = sum(used_of_card(gpu, on.get(gpu.uuid, ())) or 0.0 for gpu in picture.gpus)
    unmeasured = sum(use.milli for use in picture.shares if use.utilization is None) / WHOLE
    return Funnel(total, allocated, active, effective, unmeasured)


def stranded(picture: Picture) -> list[Stranded]:
    """Group free compute that cannot be given away by the reason, largest first."""
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for gpu in picture.gpus:
        found = _stranded(gpu)
        if found is not None and gpu.free_milli > 0:
            groups.setdefault(found, []).append((gpu.free_milli / WHOLE, gpu.uuid))
    made = [
        Stranded(reason, message, sum(cards for cards, _ in parts), [uuid for _, uuid in parts])
        for (reason, message), parts in groups.items()
    ]
    return sorted(made, key=lambda each: -each.cards)


def _stranded(gpu: GpuStatus) -> tuple[str, str] | None:
    if gpu.state != _OK:
        return gpu.state, f"the GPU is {gpu.state}, so it gets no new share"
    if gpu.free_mib == 0:
        return "no-memory", "compute is free, but all memory is allocated: shares with less memory would help"
    return None
