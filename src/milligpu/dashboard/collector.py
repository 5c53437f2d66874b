"""Takes a picture every few seconds, stores it in the history, and wakes the browsers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

from milligpu.history.prometheus import PrometheusHistory
from milligpu.history.samples import HistorySource, Level
from milligpu.history.store import FINER, HistoryReader, HistoryStore
from milligpu.model.errors import MilligpuError
from milligpu.status.advice import Advice, advise
from milligpu.status.cost import (
    CostLine,
    CostReport,
    UsageSum,
    add_sums,
    cost_by_month,
    cost_report,
    sums_by_month,
    usage_sums,
)
from milligpu.status.measure import recent_lines
from milligpu.status.picture import Picture
from milligpu.status.prices import Prices
from milligpu.status.sampling import Sampler

_log = logging.getLogger(__name__)

# Costs change slowly, and so do verdicts; for this many GPUs and shares, making them takes a moment.
_SLOW_TICKS, _MANY = 6, 1000
_SLOWER = 5
_MONTH_S = 30 * 24 * 3600.0


class Collector:
    """Holds the latest picture, verdicts and costs."""

    def __init__(
        self,
        read: Callable[[], Picture],
        store: HistoryStore | PrometheusHistory,
        *,
        interval_s: float,
        prices: Prices,
        act: Callable[[Picture], list[str]] | None = None,
    ) -> None:
        """`store` is our own file, or a Prometheus that has the measurements anyway: then nothing is stored.

        `act` does something about what was measured, and returns what people must mend; None only looks.
        """
        self._act = act
        self._mend: list[str] = []
        self._taken = 0
        self._read = read
        self._store = store
        self.history: HistorySource = HistoryReader(store.path) if isinstance(store, HistoryStore) else store
        self.interval_s = interval_s
        self.prices = prices
        self._sampler = Sampler(interval_s)
        self.picture: Picture | None = None
        self.advice: list[Advice] = []
        self.costs: CostReport | None = None
        self.months: list[CostLine] = []
        self._cost_history = CostHistory(self.history, prices)
        self.problem = ""
        """Why the picture is not updated."""
        self.ticks = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await self.collect()
            await asyncio.sleep(self.interval_s)

    async def collect(self) -> None:
        """Take one picture; a failure keeps the one before, and pages say so."""
        try:
            await asyncio.to_thread(self.take)
            self.problem = ""
        except MilligpuError as error:
            if not self.problem:
                _log.warning("The status could not be read: %s", error.message)
            self.problem = error.message
        async with self._changed:
            self.ticks += 1
            self._changed.notify_all()

    def take(self) -> None:
        """Take one picture now, in this thread."""
        picture = self._read()
        if isinstance(self._store, HistoryStore):
            self._store.add(picture.at, self._sampler.sample(picture))
        many = len(picture.gpus) + len(picture.shares) >= _MANY
        if not many or self.costs is None or self._taken % _SLOW_TICKS == 0:
            self.advice = advise(picture, recent_lines(self.history, picture.at))
        if self.costs is None or self._taken % (_SLOW_TICKS * (_SLOWER if many else 1)) == 0:
            self.costs = self._cost_history.report(picture.at)
            self.months = self._cost_history.months
        if self._act is not None and self._taken % _SLOW_TICKS == 0:
            self._mend = self._act(picture)
        self._taken += 1
        self.picture = replace(picture, problems=[*picture.problems, *self._mend]) if self._mend else picture

    async def changes(self) -> AsyncIterator[int]:
        """Yield the number of the latest picture whenever there is a new one, or every 15 seconds."""
        while True:
            with suppress(TimeoutError):
                async with self._changed, asyncio.timeout(15.0):
                    await self._changed.wait()
            yield self.ticks


class CostHistory:
    """The cost of the last 30 days. What whole hours cost is read once an hour."""

    def __init__(self, history: HistorySource, prices: Prices) -> None:
        self._history = history
        self._prices = prices
        self._hour = -1
        self._sums: dict[str, UsageSum] = {}
        self._month_sums: dict[str, dict[str, UsageSum]] = {}
        self.months: list[CostLine] = []
        """Calendar months, the latest first."""

    def report(self, now: float) -> CostReport:
        """Add up the last 30 days."""
        hour = int(now // Level.HOURS.step_s)
        if hour != self._hour:
            self._hour = hour
            self._sums = usage_sums(self._history.pieces(now - _MONTH_S, [Level.HOURS]))
            self._month_sums = sums_by_month(self._history.pieces(now - Level.HOURS.kept_s, [Level.HOURS]))
        # A new history has no whole hour yet.
        last = max((each.last for each in self._sums.values()), default=None)
        since = now - _MONTH_S if last is None else last + Level.HOURS.step_s
        later = sums_by_month(self._history.pieces(since, FINER[1:]))
        names = sorted({*self._month_sums, *later})
        months = {name: add_sums(self._month_sums.get(name, {}), later.get(name, {})) for name in names}
        self.months = cost_by_month(months, self._prices)
        found = self._sums
        for sums in later.values():
            found = add_sums(found, sums)
        return cost_report(found, self._prices)
