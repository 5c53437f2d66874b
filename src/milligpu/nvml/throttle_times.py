"""How long each GPU's clocks were reduced, by reason: the driver's counters, or samples where it has none. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from milligpu.nvml.readings import GpuVitals, ThrottleReason

_NS = 1e9
# Samples that lie further apart than this say nothing about the time between them.
_GAP_S = 3.0


class ThrottleSource(StrEnum):
    """Where a time comes from."""

    COUNTERS = "counters"
    SAMPLES = "samples"


@dataclass(frozen=True, slots=True)
class ThrottleTime:
    """Seconds with reduced clocks by reason: since the driver was loaded, or since the first sample."""

    source: ThrottleSource
    seconds: Mapping[ThrottleReason, float]


@dataclass(slots=True)
class _Sampled:
    at: float
    seconds: dict[ThrottleReason, float] = field(default_factory=lambda: dict.fromkeys(ThrottleReason, 0.0))


class ThrottleTimes:
    """The times of all GPUs, by UUID."""

    def __init__(self) -> None:
        self.times: dict[str, ThrottleTime] = {}
        self._sampled: dict[str, _Sampled] = {}

    def add(self, vitals: GpuVitals, now: float) -> None:
        """Note what was read of one GPU."""
        if vitals.throttled_ns is not None:
            seconds = {reason: time / _NS for reason, time in vitals.throttled_ns.items()}
            self.times[vitals.uuid] = ThrottleTime(ThrottleSource.COUNTERS, seconds)
        elif vitals.throttled is not None:
            self._add_sample(vitals.uuid, vitals.throttled, now)

    def _add_sample(self, uuid: str, reasons: frozenset[ThrottleReason], now: float) -> None:
        sampled = self._sampled.setdefault(uuid, _Sampled(now))
        passed = now - sampled.at
        if passed <= _GAP_S:
            for reason in reasons:
                sampled.seconds[reason] += passed
        sampled.at = now
        self.times[uuid] = ThrottleTime(ThrottleSource.SAMPLES, dict(sampled.seconds))
