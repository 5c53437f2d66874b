"""What GPUs cost, and for whom: from the history, by the price of an hour. Pure.

The parts add up: for every GPU, the shares of pods and sessions and the unallocated rest are the GPU's cost over
the time that was measured. Use beyond the share, which is time that others left idle, costs nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from milligpu.history.samples import HistoryLine
from milligpu.status.prices import Prices

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one holder, owner or the unallocated rest costs; in GPU hours, and in money where the price is known."""

    name: str
    allocated_hours: float
    used_hours: float
    """Of the allocated hours; never more."""
    allocated: float | None
    """None if no GPU of it has a price."""
    used: float | None
    unpriced_hours: float = 0.0
    """Of the allocated hours: on models without a price."""
    owner: str = ""
    """The namespace or user, of a holder."""

    @property
    def idle_hours(self) -> float:
        return self.allocated_hours - self.used_hours

    @property
    def idle(self) -> float | None:
        return None if self.allocated is None or self.used is None else self.allocated - self.used


@dataclass(frozen=True, slots=True)
class CostReport:
    """The cost of all GPUs over a time."""

    currency: str
    since: float
    until: float
    total: CostLine
    """Of the GPUs themselves."""
    holders: tuple[CostLine, ...]
    unallocated: CostLine
    unknown_models: tuple[str, ...]
    """Models without a price."""

    def by_owner(self) -> list[CostLine]:
        """Add holders up by namespace and user, most idle hours first."""
        groups: dict[str, list[CostLine]] = {}
        for line in self.holders:
            groups.setdefault(line.owner, []).append(line)
        made = [add_costs(name, lines) for name, lines in groups.items()]
        return sorted(made, key=lambda each: (-each.idle_hours, each.name))


def add_costs(name: str, lines: Iterable[CostLine]) -> CostLine:
    """Add costs up; the money is unknown only if all of it is."""
    found = list(lines)
    priced = [each for each in found if each.allocated is not None]
    return CostLine(
        name,
        sum(each.allocated_hours for each in found),
        sum(each.used_hours for each in found),
        sum(each.allocated or 0.0 for each in priced) if priced else None,
        sum(each.used or 0.0 for each in priced) if priced else None,
        sum(each.unpriced_hours for each in found),
    )


def cost_report(lines: Iterable[HistoryLine], prices: Prices) -> CostReport:
    """Read a history's lines of GPUs and shares into costs."""
    found = list(lines)
    gpus = {line.key.removeprefix("gpu/"): line for line in found if line.key.startswith("gpu/")}
    shares = [line for line in found if not line.key.startswith("gpu/")]
    priced = {uuid: prices.of(line.labels.get("model", "")) for uuid, line in gpus.items()}
    cards = {uuid: float(line.labels.get("cards", "1")) for uuid, line in gpus.items()}
    holders = [_share(line, priced.get(line.key.rpartition("/")[2])) for line in shares]
    total = add_costs("", [_gpu(line, cards[uuid], priced[uuid]) for uuid, line in gpus.items()])
    rest: list[CostLine] = []
    held: dict[str, float] = {}
    for one in holders:
        uuid = one.name.rpartition("/")[2]
        held[uuid] = held.get(uuid, 0.0) + one.allocated_hours
    for uuid, line in gpus.items():
        hours = max(0.0, _gpu(line, cards[uuid], priced[uuid]).allocated_hours - held.get(uuid, 0.0))
        rest.append(_line("unallocated", hours, 0.0, priced[uuid]))
    times = [(line.times[0], line.times[-1]) for line in gpus.values() if len(line.times)]
    unknown = {line.labels.get("model", "") for uuid, line in gpus.items() if priced[uuid] is None}
    return CostReport(
        prices.currency,
        float(min((first for first, _ in times), default=0)),
        float(max((last for _, last in times), default=0)),
        total,
        tuple(holders),
        add_costs("unallocated", rest),
        tuple(sorted(unknown)),
    )


def _gpu(line: HistoryLine, cards: float, price: float | None) -> CostLine:
    hours = float(np.sum(line.seconds)) * cards / _HOUR
    used = float(np.nansum(np.minimum(line.values("used"), cards) * line.seconds)) / _HOUR
    return _line(line.key, hours, used, price)


def _share(line: HistoryLine, price: float | None) -> CostLine:
    share, seconds = line.values("share"), line.seconds
    allocated = float(np.nansum(share * seconds)) / _HOUR
    used = float(np.nansum(np.minimum(line.values("used"), share) * seconds)) / _HOUR
    return _line(line.key, allocated, used, price, line.labels.get("owner", ""))


def _line(name: str, hours: float, used: float, price: float | None, owner: str = "") -> CostLine:
    if price is None:
        return CostLine(name, hours, used, None, None, hours, owner)
    return CostLine(name, hours, used, hours * price, used * price, 0.0, owner)
