"""What cards and containers use now: read when somebody asks, and sampled for rates.

Whatever is said about a container was measured for that container: time by the arbiter, memory by its own account
or by its processes. The card's numbers are never copied to those who share it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milligpu.agent.arbiter import LeaseAccount
from milligpu.agent.meter import Meter
from milligpu.devices.reading import Process, Reading
from milligpu.metrics.node import CardSample, ContainerSample
from milligpu.model.gpu import Gpu, State
from milligpu.model.grant import GpuShare
from milligpu.model.units import WHOLE
from milligpu.node.attach import Attached, PodView
from milligpu.node.attachments import Attachments, is_whole, shares
from milligpu.node.cards import CardWatch
from milligpu.node.leases import Leases
from milligpu.node.processes import pod_of_process
from milligpu.wire.usage import Account

_MIB = 1 << 20
_NS = 1e9
MAKE = "nvidia"


@dataclass(frozen=True, slots=True)
class Use:
    """What one container has and uses of one card; what is not known is None."""

    pod: PodView
    container: str
    share: GpuShare
    card: Gpu
    account: Account | None
    """Its own word about memory; None where it has none, or spoilt it."""
    lease: LeaseAccount | None
    duty: float | None
    """Part of the card's time within the last seconds, 0 to 1."""
    processes: tuple[Process, ...]
    """Its processes as the driver counts them; known for whole cards, whose pods share theirs with nobody."""

    @property
    def memory_limit(self) -> int:
        """Bytes."""
        return (self.card.mib if self.share.whole else self.share.mib) * _MIB

    @property
    def memory_used(self) -> int | None:
        """Bytes."""
        if self.share.whole:
            return sum((process.memory or 0) * _MIB for process in self.processes)
        return None if self.account is None else self.account.used

    @property
    def busy(self) -> float | None:
        """Part of the card's time, by whichever count there is."""
        if self.share.whole:
            return sum(process.utilisation or 0 for process in self.processes) / 100
        return self.duty


class Stats:
    """Reads pages, accounts and cards."""

    def __init__(self, node: str, cards: CardWatch, attachments: Attachments, leases: Leases) -> None:
        self._node = node
        self._cards = cards
        self._attachments = attachments
        self._leases = leases
        self._meter = Meter()

    def sample(self, now: float) -> None:
        """Remember how far the counters are, for rates."""
        for name in self._attachments.held:
            accounts = self._leases.accounts(name)
            if accounts:
                self._meter.add(name, now, [account.charged_ns for account in accounts])

    def forget(self, name: str) -> None:
        """Its container is gone."""
        self._meter.forget(name)

    def uses(self, pods: Mapping[str, PodView]) -> list[Use]:
        """Every container on every card that it holds."""
        found = [(each, pods.get(each.tenancy.uid)) for each in self._attachments.held.values()]
        return [use for each, pod in found if pod is not None for use in self._of(each, pod)]

    def _of(self, attached: Attached, pod: PodView) -> Iterable[Use]:
        page = None if is_whole(attached) else self._attachments.tenant(attached.name).usage()
        memory = page.accounts if page else ()
        leases = self._leases.accounts(attached.name)
        rates = self._meter.rates(attached.name) or ()
        for at, share in enumerate(shares(attached)):
            card = self._cards.gpus.get(share.gpu)
            if card is not None:
                yield Use(
                    pod,
                    attached.container,
                    share,
                    card,
                    memory[at] if at < len(memory) else None,
                    leases[at] if at < len(leases) else None,
                    rates[at] if at < len(rates) else None,
                    self._processes(share.gpu, pod.uid) if share.whole else (),
                )

    def _processes(self, gpu: str, uid: str) -> tuple[Process, ...]:
        reading = self._cards.readings.get(gpu)
        found = reading.processes if reading else ()
        return tuple(process for process in found if pod_of_process(process.pid) == uid)

    def card_samples(self) -> dict[str, CardSample]:
        """The cards, by UUID."""
        readings = self._cards.readings
        return {
            gpu.uuid: _card(index, gpu, self._node, readings.get(gpu.uuid), self._cards.xids.get(gpu.uuid, 0))
            for index, gpu in enumerate(self._cards.gpus.values())
        }

    def container_samples(self, pods: Mapping[str, PodView]) -> list[ContainerSample]:
        """The containers on them."""
        cards = self.card_samples()
        return [_container(use, cards[use.card.uuid]) for use in self.uses(pods)]


def _card(index: int, gpu: Gpu, node: str, reading: Reading | None, xids: int) -> CardSample:
    gauges: dict[str, float | None] = {"milligpu_gpu_memory_total_bytes": gpu.mib * _MIB}
    counters: dict[str, float | None] = {"milligpu_gpu_xid_errors": xids}
    if reading is not None:
        gauges |= {
            "milligpu_gpu_utilization_ratio": _scaled(reading.utilisation, 100),
            "milligpu_gpu_memory_used_bytes": reading.memory_used * _MIB,
            "milligpu_gpu_temperature_celsius": reading.temperature,
            "milligpu_gpu_power_watts": _scaled(reading.milliwatts, 1000),
            "milligpu_gpu_clock_hertz": _scaled(reading.clock_mhz, 1e-6),
        }
        counters |= {
            "milligpu_gpu_energy_joules": _scaled(reading.millijoules, 1000),
            "milligpu_gpu_ecc_corrected": reading.ecc_corrected,
            "milligpu_gpu_ecc_uncorrected": reading.ecc_uncorrected,
        }
    throttled = frozenset(map(str, reading.throttled)) if reading else frozenset[str]()
    return CardSample(index, gpu.uuid, gpu.model, node, gpu.state is State.OK, gauges, counters, throttled)


def _container(use: Use, card: CardSample) -> ContainerSample:
    share, account, lease = use.share, use.account, use.lease
    gauges: dict[str, float | None] = {
        "milligpu_container_share_ratio": 1.0 if share.whole else share.milli / WHOLE,
        "milligpu_container_limit_ratio": 1.0 if share.whole else share.limit / WHOLE,
        "milligpu_container_memory_limit_bytes": use.memory_limit,
        "milligpu_container_memory_used_bytes": use.memory_used,
        "milligpu_container_memory_peak_bytes": account.peak if account else None,
        "milligpu_container_on_unhealthy_gpu": float(use.card.state is State.SICK),
    }
    counters: dict[str, float | None] = {
        "milligpu_container_gpu_seconds": lease.charged_ns / _NS if lease else None,
        "milligpu_container_waiting_seconds": lease.waited_ns / _NS if lease else None,
        "milligpu_container_throttled_seconds": lease.throttled_ns / _NS if lease else None,
        "milligpu_container_out_of_memory": account.refused if account else None,
    }
    return ContainerSample(card, use.pod.namespace, use.pod.name, use.container, gauges, counters)


def accelerator_stats(uses: Iterable[Use]) -> list[dict[str, object]]:
    """Per container what Kubernetes' AcceleratorStats has: memory in bytes, duty cycle in percent."""
    found: dict[tuple[str, str, str], list[dict[str, object]]] = {}
    for use in uses:
        key = (use.pod.namespace, use.pod.name, use.container)
        found.setdefault(key, []).append(
            {
                "make": MAKE,
                "model": use.card.model,
                "id": use.card.uuid,
                "memoryTotal": use.memory_limit,
                "memoryUsed": use.memory_used,
                "dutyCycle": None if use.busy is None else round(use.busy * 100),
                "waiting": None if use.lease is None else bool(use.lease.wanting) and not use.lease.holding,
            }
        )
    return [
        {"namespace": namespace, "pod": pod, "container": container, "accelerators": accelerators}
        for (namespace, pod, container), accelerators in found.items()
    ]


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by
