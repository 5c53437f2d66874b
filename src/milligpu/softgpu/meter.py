"""The sensors of a GPU, derived from the time its engines really worked. Pure: the caller passes the time.

The model of power and temperature is simple. Power rises linearly with utilization, from the model's idle power to
its limit. The temperature approaches the value for that power exponentially, like a body with one heat capacity.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from milligpu.softgpu.models import GpuModel

SECOND = 1_000_000_000
# Utilization is averaged over the last second, as on most GPUs.
WINDOW = SECOND
# Heat sinks in servers need about twenty seconds to warm up.
WARMING_SECONDS = 20.0
# NVML's accounting remembers this many processes, here and in native/softnvml/state.c.
ACCOUNTS_MAX = 4000


@dataclass(frozen=True, slots=True)
class Work:
    """What a context has done so far: nanoseconds of the engines, bytes to and from the GPU."""

    busy: int = 0
    copying: int = 0
    received: int = 0
    sent: int = 0

    def since(self, before: "Work") -> "Work":
        """The work since `before`; a counter that decreased belongs to a new context in a reused slot."""
        if self.busy < before.busy or self.copying < before.copying:
            return self
        return Work(
            self.busy - before.busy,
            self.copying - before.copying,
            self.received - before.received,
            self.sent - before.sent,
        )

    def plus(self, other: "Work") -> "Work":
        return Work(
            self.busy + other.busy,
            self.copying + other.copying,
            self.received + other.received,
            self.sent + other.sent,
        )


@dataclass(frozen=True, slots=True)
class Context:
    """A context: its slot on the GPU's activity page and its process."""

    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class Load:
    """Averages over the last second: fractions of 1, and bytes per second."""

    busy: float
    copying: float
    received: float
    sent: float


@dataclass(slots=True)
class AccountedProcess:
    """What one process has used, for NVML's accounting; times are in nanoseconds."""

    start: int
    end: int | None = None
    work: Work = Work()
    most_memory: int = 0


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    work: Mapping[int, Work]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / SECOND

    @property
    def total(self) -> Work:
        total = Work()
        for work in self.work.values():
            total = total.plus(work)
        return total


@dataclass(slots=True)
class SensorModel:
    """The sensors of one GPU."""

    model: GpuModel
    now: int
    power_limit: int = 0
    celsius: float = 0.0
    millijoules: float = 0.0
    received: int = 0
    sent: int = 0
    accounting: bool = False
    accounted: dict[int, AccountedProcess] = field(default_factory=dict[int, AccountedProcess])
    known: Mapping[Context, Work] = field(default_factory=dict[Context, Work])
    _spans: deque[_Span] = field(default_factory=deque[_Span])

    def __post_init__(self) -> None:
        self.power_limit = self.model.power.default
        self.celsius = float(self.model.heat.idle)

    def sample(self, now: int, work: Mapping[Context, Work], memory: Mapping[int, int]) -> None:
        """Record the counters of all contexts and the memory of each process at `now`."""
        if now <= self.now:
            return
        done: dict[int, Work] = {}
        for context, total in work.items():
            part = total.since(self.known.get(context, Work()))
            done[context.pid] = done.get(context.pid, Work()).plus(part)
        span = _Span(self.now, now, done)
        self.known, self.now = dict(work), now
        total = span.total
        self.received += total.received
        self.sent += total.sent
        self._heat(span)
        self._account(span, memory)
        self._spans.append(span)
        while self._spans[0].end <= now - WINDOW:
            self._spans.popleft()

    def load(self) -> Load:
        """The load of the whole GPU over the last second."""
        return self._average([(span, span.total) for span in self._spans])

    def loads(self, newer: int) -> dict[int, Load]:
        """The load of each process that worked after `newer`."""
        spans = [span for span in self._spans if span.end > newer]
        pids = {pid for span in spans for pid, work in span.work.items() if work.busy or work.copying}
        return {pid: self._average([(span, span.work.get(pid, Work())) for span in spans]) for pid in sorted(pids)}

    def power(self, busy: float) -> int:
        """Milliwatts at this utilization."""
        power = self.model.power
        return round(power.idle + (min(self.power_limit, power.default) - power.idle) * busy)

    def _average(self, parts: list[tuple[_Span, Work]]) -> Load:
        begin, time = self.now - WINDOW, 0.0
        sums = [0.0, 0.0, 0.0, 0.0]
        for span, work in parts:
            overlap = (span.end - max(span.start, begin)) / (span.end - span.start)
            time += overlap * (span.end - span.start)
            for at, amount in enumerate((work.busy, work.copying, work.received, work.sent)):
                sums[at] += overlap * amount
        if not time:
            return Load(0.0, 0.0, 0.0, 0.0)
        busy, copying, received, sent = (amount / time for amount in sums)
        return Load(min(1.0, busy), min(1.0, copying), received * SECOND, sent * SECOND)

    def _heat(self, span: _Span) -> None:
        power, heat = self.model.power, self.model.heat
        milliwatts = self.power(min(1.0, span.total.busy / (span.end - span.start)))
        self.millijoules += milliwatts * span.seconds
        target = heat.idle + (heat.load - heat.idle) * (milliwatts - power.idle) / (power.default - power.idle)
        self.celsius = target + (self.celsius - target) * math.exp(-span.seconds / WARMING_SECONDS)

    def _account(self, span: _Span, memory: Mapping[int, int]) -> None:
        if not self.accounting:
            return
        for pid, held in memory.items():
            if pid not in self.accounted or self.accounted[pid].end is not None:
                self.accounted.pop(pid, None)
                self.accounted[pid] = AccountedProcess(span.start)
            process = self.accounted[pid]
            process.work = process.work.plus(span.work.get(pid, Work()))
            process.most_memory = max(process.most_memory, held)
        for pid, process in self.accounted.items():
            if pid not in memory and process.end is None:
                process.end = span.end
        while len(self.accounted) > ACCOUNTS_MAX:
            del self.accounted[next(iter(self.accounted))]
