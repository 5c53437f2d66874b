"""A node's GPUs, and the containers and sessions that hold shares of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_GPU = ("gpu", "UUID", "modelName", "Hostname")
_CONTAINER = (*_GPU, "namespace", "pod", "container")
_SESSION = (*_GPU, "session")


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    uuid: str
    model: str
    node: str
    healthy: bool
    gauges: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """By the name of the metric, in base units; None is left out."""
    counters: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    throttled: frozenset[str] = frozenset()
    violations: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many the audit found, by kind."""
    throttle_source: str = ""
    throttled_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """By reason; from the driver's counters or from samples, as `throttle_source` says."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a GPU, named as in NVIDIA's exporter."""
        return (str(self.index), self.uuid, self.model, self.node)


@dataclass(frozen=True, slots=True)
class ShareSample:
    """What one container or session has of one GPU."""

    gpu: GpuSample
    owner: tuple[str, ...]
    """A container's namespace, pod and name, or a session's ID."""
    gauges: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    """By the end of the metric's name, in base units; None is left out."""
    counters: Mapping[str, float | None] = field(default_factory=dict[str, float | None])

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the GPU and of the owner."""
        return (*self.gpu.labels, *self.owner)


GPU_HELP = {
    "milligpu_gpu_utilization_ratio": "Fraction of the time in which anything ran on the GPU",
    "milligpu_gpu_memory_utilization_ratio": "Fraction of the time in which the GPU's memory was read or written",
    "milligpu_gpu_encoder_utilization_ratio": "Fraction of the time in which the GPU's video encoder worked",
    "milligpu_gpu_decoder_utilization_ratio": "Fraction of the time in which the GPU's video decoder worked",
    "milligpu_gpu_memory_used_bytes": "Memory in use on the GPU",
    "milligpu_gpu_memory_total_bytes": "Memory of the GPU",
    "milligpu_gpu_unallocated_memory_bytes": "Memory of the GPU that no container or session holds",
    "milligpu_gpu_capacity_ratio": "Compute of the GPU in GPUs: 1, or less for a vGPU",
    "milligpu_gpu_unallocated_ratio": "Compute of the GPU that no container or session holds, in GPUs",
    "milligpu_gpu_shared_seconds": "GPU time that passed while no holder had the whole GPU",
    "milligpu_gpu_idle_seconds": "Part of the shared time that no container or session was charged",
    "milligpu_gpu_temperature_celsius": "Temperature of the GPU",
    "milligpu_gpu_slowdown_temperature_celsius": "Temperature at which the GPU reduces its clocks",
    "milligpu_gpu_power_watts": "Power that the GPU draws",
    "milligpu_gpu_power_limit_watts": "Power that the GPU may draw",
    "milligpu_gpu_clock_hertz": "Clock of the GPU's multiprocessors",
    "milligpu_gpu_memory_clock_hertz": "Clock of the GPU's memory",
    "milligpu_gpu_energy_joules": "Energy that the GPU used since its driver was loaded",
    "milligpu_gpu_unallocated_energy_joules": "Part of the GPU's energy that no container or session is charged",
    "milligpu_gpu_pcie_sent_bytes_per_second": "Bytes that the GPU sends over PCIe, sampled by the driver",
    "milligpu_gpu_pcie_received_bytes_per_second": "Bytes that the GPU receives over PCIe, sampled by the driver",
    "milligpu_gpu_pcie_sent_bytes": "Bytes that the GPU sent over PCIe",
    "milligpu_gpu_pcie_received_bytes": "Bytes that the GPU received over PCIe",
    "milligpu_gpu_pcie_replays": "Packets that the GPU's PCIe link sent again",
    "milligpu_gpu_nvlink_sent_bytes": "Bytes that the GPU sent over all its NVLinks",
    "milligpu_gpu_nvlink_received_bytes": "Bytes that the GPU received over all its NVLinks",
    "milligpu_gpu_remapped_rows_corrected": "Rows of memory that were replaced because of corrected errors",
    "milligpu_gpu_remapped_rows_uncorrected": "Rows of memory that were replaced because of uncorrected errors",
    "milligpu_gpu_remapped_rows_pending": "Whether a row of memory is replaced with the next reset",
    "milligpu_gpu_remapped_rows_failed": "Whether a row of memory could not be replaced",
    "milligpu_gpu_ecc_corrected": "Memory errors that the GPU corrected since its last reset",
    "milligpu_gpu_ecc_uncorrected": "Memory errors that the GPU could not correct since its last reset",
    "milligpu_gpu_xid_errors": "Errors that the driver reported since the agent started",
}
"""The metrics of a GPU that are numbers, without the ending that counters get."""

SHARE_HELP = {
    "share_ratio": "Fraction of the GPU's time that the {holder} is granted",
    "limit_ratio": "Largest fraction of the GPU's time that the {holder} may use",
    "memory_limit_bytes": "GPU memory that the {holder} is granted",
    "memory_used_bytes": "GPU memory in use by the {holder}",
    "memory_peak_bytes": "Most GPU memory that the {holder} ever used at once",
    "power_watts": "Power that the {holder} is charged, within the last seconds",
    "on_unhealthy_gpu": "Whether the GPU that the {holder} holds is unhealthy",
    "gpu_seconds": "GPU time that the {holder} was charged",
    "waiting_seconds": "Time in which the {holder} wanted the GPU while another tenant had it",
    "throttled_seconds": "Part of the waiting time: the {holder} had reached its own limit",
    "energy_joules": "Energy: part of the GPU's idle energy, and what it used more while the {holder} had it",
    "out_of_memory": "Allocations that exceeded the memory limit of the {holder}",
}
"""The metrics of a container (`milligpu_container_...`) and of a session (`milligpu_session_...`)."""


def families(gpus: Sequence[GpuSample], shares: Sequence[ShareSample]) -> Iterator[Metric]:
    """Make all metric families for one scrape."""
    yield _healthy(gpus)
    yield _throttled(gpus)
    yield _throttled_seconds(gpus)
    yield from _violations(gpus)
    yield from _numbers(_GPU, gpus, lambda name: (name, GPU_HELP[name]))
    for holder, labels in (("container", _CONTAINER), ("session", _SESSION)):
        samples = [each for each in shares if len(each.labels) == len(labels)]
        yield from _numbers(
            labels,
            samples,
            lambda name, holder=holder: (f"milligpu_{holder}_{name}", SHARE_HELP[name].format(holder=holder)),
        )


def _healthy(gpus: Iterable[GpuSample]) -> Metric:
    family = GaugeMetricFamily("milligpu_gpu_healthy", "Whether new shares may go to the GPU", labels=_GPU)
    for gpu in gpus:
        family.add_metric(gpu.labels, float(gpu.healthy))
    return family


def _throttled(gpus: Iterable[GpuSample]) -> Metric:
    text = "Why the GPU's clocks are held down now"
    family = GaugeMetricFamily("milligpu_gpu_throttled", text, labels=(*_GPU, "reason"))
    for gpu in gpus:
        for reason in sorted(gpu.throttled):
            family.add_metric((*gpu.labels, reason), 1.0)
    return family


def _throttled_seconds(gpus: Iterable[GpuSample]) -> Metric:
    text = "Time in which the GPU's clocks were held down, by reason and by where the time comes from"
    family = CounterMetricFamily("milligpu_gpu_throttled_seconds", text, labels=(*_GPU, "reason", "source"))
    for gpu in gpus:
        for reason, seconds in sorted(gpu.throttled_seconds.items()):
            family.add_metric((*gpu.labels, reason, gpu.throttle_source), seconds)
    return family


_OLD_KINDS = {
    "unknown-process": "stranger",
    "bypass": "around-the-limits",
    "wrong-usage-page": "spoilt-account",
    "over-compute": "over-time",
}


def _violations(gpus: Iterable[GpuSample]) -> Iterator[Metric]:
    text = "Processes and tenants that the audit found using the GPU beyond their grant"
    family = CounterMetricFamily("milligpu_gpu_violations", text, labels=(*_GPU, "kind"))
    # The name and the kinds of version 0.1.0, for dashboards and alerts that still use them.
    old = CounterMetricFamily(
        "milligpu_gpu_outside", "Deprecated: use milligpu_gpu_violations_total", labels=(*_GPU, "offence")
    )
    for gpu in gpus:
        for kind, count in sorted(gpu.violations.items()):
            family.add_metric((*gpu.labels, kind), count)
            old.add_metric((*gpu.labels, _OLD_KINDS.get(kind, kind)), count)
    yield family
    yield old


def _numbers(
    labels: Sequence[str], samples: Sequence[GpuSample | ShareSample], describe: Callable[[str], tuple[str, str]]
) -> Iterator[Metric]:
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for sample in samples:
        for make, numbers in ((GaugeMetricFamily, sample.gauges), (CounterMetricFamily, sample.counters)):
            for name, value in numbers.items():
                if value is not None:
                    if name not in found:
                        found[name] = make(*describe(name), labels=labels)
                    found[name].add_metric(sample.labels, value)
    yield from found.values()
