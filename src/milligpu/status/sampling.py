"""Pictures in, samples for the history out. Rates come from counters, so nothing between two pictures is missed."""

from dataclasses import dataclass
from math import isnan

from milligpu.history.samples import UNKNOWN, HistorySample
from milligpu.model.units import WHOLE
from milligpu.status.picture import Picture, gpu_key, share_key, used_of_card
from milligpu.wire.status import GpuStatus, ShareUsage

_NS = 1e9
# A gap of more than this many intervals was not measured: the service was away, or the machine slept.
_GAP_INTERVALS = 3.0


@dataclass(frozen=True, slots=True)
class _Counters:
    at: float
    gpu_time_ns: int | None
    waiting_ns: int | None
    throttled_ns: int | None
    refusals: int | None


@dataclass(frozen=True, slots=True)
class _GpuCounters:
    at: float
    throttled_s: float | None
    xids: int | None


class Sampler:
    """Remembers the counters of the previous picture."""

    def __init__(self, interval_s: float) -> None:
        self._interval = interval_s
        self._before: dict[str, _Counters] = {}
        self._gpus_before: dict[str, _GpuCounters] = {}
        self._at: float | None = None

    def sample(self, picture: Picture) -> dict[str, HistorySample]:
        """Make the samples of one picture, by key; the first picture of a share has no rates."""
        passed = self._interval if self._at is None else picture.at - self._at
        seconds = min(max(passed, 0.0), self._interval * _GAP_INTERVALS)
        found: dict[str, HistorySample] = {}
        counters: dict[str, _Counters] = {}
        used: dict[str, list[float]] = {}
        for use in picture.shares:
            key = share_key(use)
            now = _Counters(picture.at, use.gpu_time_ns, use.waiting_ns, use.throttled_ns, use.refusals)
            sample = _share(use, now, self._before.get(key), seconds, _labels(picture, use))
            counters[key], found[key] = now, sample
            if not isnan(sample.values[0]):
                used.setdefault(use.gpu, []).append(sample.values[0])
        slowed = {gpu.uuid: _GpuCounters(picture.at, throttled_seconds(gpu), gpu.xids) for gpu in picture.gpus}
        for gpu in picture.gpus:
            before = self._gpus_before.get(gpu.uuid)
            found[gpu_key(gpu.uuid)] = _gpu(gpu, used.get(gpu.uuid), seconds, slowed[gpu.uuid], before)
        self._before, self._gpus_before, self._at = counters, slowed, picture.at
        return found


def _labels(picture: Picture, use: ShareUsage) -> dict[str, str]:
    """Who pays for a share."""
    queue, user = picture.queue_and_user(use)
    found = {"owner": picture.owner(use), "queue": queue, "user": user}
    return {name: value for name, value in found.items() if value or name == "owner"}


def _share(
    use: ShareUsage, now: _Counters, before: _Counters | None, seconds: float, labels: dict[str, str]
) -> HistorySample:
    used = _rate(now.gpu_time_ns, before and before.gpu_time_ns, now, before)
    if isnan(used) and use.utilization is not None:
        used = use.utilization
    values = (
        used,
        use.milli / WHOLE,
        UNKNOWN if use.memory_used is None else float(use.memory_used),
        use.limit / WHOLE,
        _rate(now.waiting_ns, before and before.waiting_ns, now, before),
        _rate(now.throttled_ns, before and before.throttled_ns, now, before),
        _rate(now.refusals, before and before.refusals, now, before, unit=1),
    )
    return HistorySample(seconds, values, labels)


def _rate(
    later: int | None,
    earlier: int | None,
    now: _Counters | _GpuCounters,
    before: _Counters | _GpuCounters | None,
    *,
    unit: float = _NS,
) -> float:
    """Growth of a counter per second; unknown without two readings, or after a restart that began at 0 again."""
    if later is None or earlier is None or before is None or later < earlier or now.at <= before.at:
        return UNKNOWN
    return (later - earlier) / unit / (now.at - before.at)


def throttled_seconds(gpu: GpuStatus) -> float | None:
    """Seconds in which a GPU's clocks were reduced; reasons hold at the same time, so the longest one counts."""
    return None if gpu.throttled is None else max(gpu.throttled.values(), default=0.0)


def _slowed(now: _GpuCounters, before: _GpuCounters | None) -> float:
    if before is None or now.throttled_s is None or before.throttled_s is None or now.at <= before.at:
        return UNKNOWN
    grown = now.throttled_s - before.throttled_s
    return UNKNOWN if grown < 0 else min(1.0, grown / (now.at - before.at))


def _gpu(
    gpu: GpuStatus, used: list[float] | None, seconds: float, counters: _GpuCounters, before: _GpuCounters | None
) -> HistorySample:
    now = sum(used) if used else used_of_card(gpu, ())
    values = (
        UNKNOWN if now is None else now,
        (gpu.milli - gpu.free_milli) / WHOLE,
        UNKNOWN if gpu.memory_used is None else float(gpu.memory_used),
        UNKNOWN if gpu.power is None else gpu.power,
        UNKNOWN if gpu.temperature is None else float(gpu.temperature),
        _slowed(counters, before),
        _rate(counters.xids, before and before.xids, counters, before, unit=1),
    )
    return HistorySample(seconds, values, {"model": gpu.model, "node": gpu.node, "cards": f"{gpu.milli / WHOLE:g}"})
