"""What GPUs cost, and for whom: from the history, by the price of an hour. Pure.

The parts add up: for every GPU, the shares of pods and sessions and the unallocated rest are the GPU's cost over
the time that was measured. Use beyond the share, which is time that others left idle, costs nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from milligpu.history.samples import HistoryLine
from milligpu.status.prices import Prices

_HOUR = 3600.0
_GPU = "gpu/"
HOURS_PER_MONTH = 730.0
"""Of an average month."""


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What was measured of one GPU or share over a time, added up."""

    key: str
    labels: Mapping[str, str]
    seconds: float
    granted_s: float
    """Card seconds: the share over its time, or all of a GPU."""
    used_s: float
    """Of those; never more."""
    first: int
    last: int

    def plus(self, later: "UsageSum") -> "UsageSum":
        """Both times together; the later one's labels count."""
        return UsageSum(
            self.key,
            later.labels,
            self.seconds + later.seconds,
            self.granted_s + later.granted_s,
            self.used_s + later.used_s,
            min(self.first, later.first),
            max(self.last, later.last),
        )


UsageSums = Mapping[str, UsageSum]
"""By key."""


def usage_sums(lines: Iterable[HistoryLine]) -> dict[str, UsageSum]:
    """Add lines up, one after the other: a key may come again."""
    found: dict[str, UsageSum] = {}
    for line in lines:
        if len(line.times):
            one = _sum(line)
            found[line.key] = found[line.key].plus(one) if line.key in found else one
    return found


def add_sums(before: UsageSums, later: UsageSums) -> dict[str, UsageSum]:
    """Two times, one after the other."""
    found = dict(before)
    for key, one in later.items():
        found[key] = found[key].plus(one) if key in found else one
    return found


def _sum(line: HistoryLine) -> UsageSum:
    seconds = line.seconds
    granted = float(line.labels.get("cards", "1")) if line.key.startswith(_GPU) else line.values("share")
    return UsageSum(
        line.key,
        line.labels,
        float(np.sum(seconds)),
        float(np.nansum(granted * seconds)),
        float(np.nansum(np.minimum(line.values("used"), granted) * seconds)),
        int(line.times[0]),
        int(line.times[-1]),
    )


def sums_by_month(lines: Iterable[HistoryLine]) -> dict[str, dict[str, UsageSum]]:
    """The same for each calendar month (UTC), such as `2026-11`."""
    found: dict[str, dict[str, UsageSum]] = {}
    for line in lines:
        months = line.times.astype("datetime64[s]").astype("datetime64[M]")
        for month in np.unique(months):
            mine = months == month
            one = _sum(HistoryLine(line.key, line.labels, line.times[mine], line.rows[mine]))
            sums = found.setdefault(str(month), {})
            sums[line.key] = sums[line.key].plus(one) if line.key in sums else one
    return dict(sorted(found.items()))


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
    queue: str = ""
    """Of a pod that is in one."""
    user: str = ""
    """Whom the pod counts for in its queue; the user of a session."""

    @property
    def idle_hours(self) -> float:
        return self.allocated_hours - self.used_hours

    @property
    def idle(self) -> float | None:
        return None if self.allocated is None or self.used is None else self.allocated - self.used


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What unused GPUs cost: (1 - u) x n x p x hours."""

    use: float
    """u: fraction of the GPUs' time, weighted by price, in which allocated shares were used."""
    gpus: float
    """n: those with a price, on average."""
    price: float
    """p: of an hour of one, on average."""
    hours: float

    @property
    def cost(self) -> float:
        return (1 - self.use) * self.gpus * self.price * self.hours


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
    hours: float = 0.0
    """For which GPUs were measured."""

    def by_owner(self) -> list[CostLine]:
        """Add holders up by namespace and user, most idle hours first."""
        return self._by(lambda line: line.owner)

    def by_queue(self) -> list[CostLine]:
        """Add holders up by queue; those of no queue are one line without a name."""
        return self._by(lambda line: line.queue)

    def by_user(self) -> list[CostLine]:
        """Add holders up by the person; pods of no queue count for their namespace."""
        return self._by(lambda line: line.user or f"namespace:{line.owner}")

    def _by(self, group: Callable[[CostLine], str]) -> list[CostLine]:
        groups: dict[str, list[CostLine]] = {}
        for line in self.holders:
            groups.setdefault(group(line), []).append(line)
        made = [add_costs(name, lines) for name, lines in groups.items()]
        return sorted(made, key=lambda each: (-each.idle_hours, each.name))

    def idle_cost(self, hours: float | None = None) -> IdleCost | None:
        """The formula with this report's numbers, over its own hours or others; None without any price."""
        priced = self.total.allocated_hours - self.total.unpriced_hours
        if self.total.allocated is None or self.total.used is None or not self.hours or not priced:
            return None
        use = self.total.used / self.total.allocated if self.total.allocated else 1.0
        price = self.total.allocated / priced
        return IdleCost(use, priced / self.hours, price, self.hours if hours is None else hours)


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


def cost_report(sums: UsageSums, prices: Prices) -> CostReport:
    """Turn what was measured of GPUs and shares into costs."""
    gpus = {key.removeprefix(_GPU): one for key, one in sums.items() if key.startswith(_GPU)}
    priced = {uuid: prices.of(one.labels.get("model", "")) for uuid, one in gpus.items()}
    holders = [
        _line(one, priced.get(key.rpartition("/")[2])) for key, one in sums.items() if not key.startswith(_GPU)
    ]
    held: dict[str, float] = {}
    for one in holders:
        uuid = one.name.rpartition("/")[2]
        held[uuid] = held.get(uuid, 0.0) + one.allocated_hours
    whole = {uuid: _line(one, priced[uuid]) for uuid, one in gpus.items()}
    rest = [
        _cost("unallocated", max(0.0, line.allocated_hours - held.get(uuid, 0.0)), 0.0, priced[uuid])
        for uuid, line in whole.items()
    ]
    unknown = {one.labels.get("model", "") for uuid, one in gpus.items() if priced[uuid] is None}
    return CostReport(
        prices.currency,
        float(min((one.first for one in gpus.values()), default=0)),
        float(max((one.last for one in gpus.values()), default=0)),
        add_costs("", whole.values()),
        tuple(holders),
        add_costs("unallocated", rest),
        tuple(sorted(unknown)),
        max((one.seconds for one in gpus.values()), default=0.0) / _HOUR,
    )


def cost_by_month(months: Mapping[str, UsageSums], prices: Prices) -> list[CostLine]:
    """The cost of the GPUs in each calendar month, the latest first."""
    found = [(name, cost_report(sums, prices).total) for name, sums in months.items()]
    return [add_costs(name, [total]) for name, total in reversed(found)]


def _line(one: UsageSum, price: float | None) -> CostLine:
    return _cost(one.key, one.granted_s / _HOUR, one.used_s / _HOUR, price, one.labels)


def _cost(
    name: str, hours: float, used: float, price: float | None, labels: Mapping[str, str] | None = None
) -> CostLine:
    who = [(labels or {}).get(each, "") for each in ("owner", "queue", "user")]
    if price is None:
        return CostLine(name, hours, used, None, None, hours, *who)
    return CostLine(name, hours, used, hours * price, used * price, 0.0, *who)
