"""What pods say they serve: their metrics in Prometheus' text format, reduced to three numbers."""

from dataclasses import dataclass
from math import isfinite

from milligpu.model.errors import BadFormat
from milligpu.model.gpu_service import LoadSource


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What one pod says at one moment; 0 for metrics that the service does not name."""

    requests: float = 0.0
    """Since the program began."""
    running: float = 0.0
    waiting: float = 0.0


class UnknownMetric(BadFormat):
    """The page lacks a metric that the service names."""


def parse_load(text: str, source: LoadSource) -> PodLoad:
    """Add up each metric over its labels. Raises `BadFormat` for NaN and for what is no number.

    A metric that is declared without a sample is 0: clients show one with labels only after its first use.
    """
    wanted = [each for each in (source.requests, source.running, source.waiting) if each]
    sums = dict[str, float]()
    declared = set[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) > 2 and words[1] == "TYPE":
                declared |= {words[2], f"{words[2]}_total"}  # OpenMetrics declares counters without _total
            continue
        name = line[: min((at for at in (line.find("{"), line.find(" ")) if at >= 0), default=len(line))]
        if name in wanted:
            sums[name] = sums.get(name, 0.0) + _value(name, line)
    for name in wanted:
        if name not in sums and name not in declared:
            raise UnknownMetric("metrics", f"there is no {name}")
    return PodLoad(*(sums.get(name, 0.0) for name in (source.requests, source.running, source.waiting)))


def _value(name: str, line: str) -> float:
    rest = line[line.rfind("}") + 1 :] if "}" in line else line[len(name) :]
    words = rest.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        raise BadFormat("metrics", f"{name} is no number") from None
    if not isfinite(value) or value < 0:
        raise BadFormat("metrics", f"{name} is {words[0]}")
    return value
