"""A node's cards and the containers on them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_CARD = ("gpu", "UUID", "modelName", "Hostname")
_CONTAINER = (*_CARD, "namespace", "pod", "container")


@dataclass(frozen=True, slots=True)
class CardSample:
    """One card at one moment."""

    index: int
    uuid: str
    model: str
    node: str
    healthy: bool
    gauges: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """By the name of the metric, in base units; None is left out."""
    counters: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    throttled: frozenset[str] = frozenset()
    outside: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often the audit found somebody, by offence."""

    @property
    def labels(self) -> tuple[str, ...]:
        """As NVIDIA's exporter labels a card."""
        return (str(self.index), self.uuid, self.model, self.node)


@dataclass(frozen=True, slots=True)
class ContainerSample:
    """What one container has of one card."""

    card: CardSample
    namespace: str
    pod: str
    container: str
    gauges: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    counters: Mapping[str, float | None] = field(default_factory=dict[str, float | None])

    @property
    def labels(self) -> tuple[str, ...]:
        """The card's, and whose it is."""
        return (*self.card.labels, self.namespace, self.pod, self.container)


HELP = {
    "milligpu_gpu_utilization_ratio": "Part of the time in which anything ran on the GPU",
    "milligpu_gpu_memory_used_bytes": "Memory in use on the GPU",
    "milligpu_gpu_memory_total_bytes": "Memory of the GPU",
    "milligpu_gpu_temperature_celsius": "Temperature of the GPU",
    "milligpu_gpu_power_watts": "Power that the GPU draws",
    "milligpu_gpu_clock_hertz": "Clock of the GPU's multiprocessors",
    "milligpu_gpu_energy_joules": "Energy that the GPU used since its driver was loaded",
    "milligpu_gpu_ecc_corrected": "Memory errors that the GPU corrected since its last reset",
    "milligpu_gpu_ecc_uncorrected": "Memory errors that the GPU could not correct since its last reset",
    "milligpu_gpu_xid_errors": "Errors that the driver reported since the agent started",
    "milligpu_container_share_ratio": "Part of the GPU's time that the container is granted",
    "milligpu_container_limit_ratio": "Most of the GPU's time that the container may use",
    "milligpu_container_memory_limit_bytes": "GPU memory that the container is granted",
    "milligpu_container_memory_used_bytes": "GPU memory in use by the container",
    "milligpu_container_memory_peak_bytes": "Most GPU memory that the container ever used at once",
    "milligpu_container_on_unhealthy_gpu": "Whether the GPU that the container holds fell sick",
    "milligpu_container_gpu_seconds": "GPU time that the container was charged",
    "milligpu_container_waiting_seconds": "Time in which the container wanted the GPU and others had it",
    "milligpu_container_throttled_seconds": "Of the waiting, time in which its own limit kept it from the GPU",
    "milligpu_container_out_of_memory": "Allocations that the container's limit refused",
}
"""Every metric that has samples as numbers, without the ending that counters get."""


def families(cards: Sequence[CardSample], containers: Sequence[ContainerSample]) -> Iterator[Metric]:
    """All of it, for one scrape."""
    yield _healthy(cards)
    yield _throttled(cards)
    yield _outside(cards)
    yield from _numbers(_CARD, cards)
    yield from _numbers(_CONTAINER, containers)


def _healthy(cards: Iterable[CardSample]) -> Metric:
    family = GaugeMetricFamily("milligpu_gpu_healthy", "Whether new shares may go to the GPU", labels=_CARD)
    for card in cards:
        family.add_metric(card.labels, float(card.healthy))
    return family


def _throttled(cards: Iterable[CardSample]) -> Metric:
    text = "Why the GPU's clocks are held down now"
    family = GaugeMetricFamily("milligpu_gpu_throttled", text, labels=(*_CARD, "reason"))
    for card in cards:
        for reason in sorted(card.throttled):
            family.add_metric((*card.labels, reason), 1.0)
    return family


def _outside(cards: Iterable[CardSample]) -> Metric:
    text = "Users of the GPU without a share, or beyond it, that the audit found"
    family = CounterMetricFamily("milligpu_gpu_outside", text, labels=(*_CARD, "offence"))
    for card in cards:
        for offence, count in sorted(card.outside.items()):
            family.add_metric((*card.labels, offence), count)
    return family


def _numbers(labels: Sequence[str], samples: Sequence[CardSample | ContainerSample]) -> Iterator[Metric]:
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for sample in samples:
        for make, numbers in ((GaugeMetricFamily, sample.gauges), (CounterMetricFamily, sample.counters)):
            for name, value in numbers.items():
                if value is not None:
                    if name not in found:
                        found[name] = make(name, HELP[name], labels=labels)
                    found[name].add_metric(sample.labels, value)
    yield from found.values()
