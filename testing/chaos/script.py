"""What happens in each round; the same seed gives the same sequence. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from random import Random


class Component(StrEnum):
    """What a disruption stops."""

    AGENT = "agent"
    HUNG_AGENT = "agent, hung"
    KUBELET = "kubelet"
    CONTAINERD = "containerd"
    SERVICE = "scheduler service"
    KUBE_SCHEDULER = "kube-scheduler"
    API_SERVER = "API server"
    ETCD = "etcd"
    REBOOT = "reboot"
    STALE_REBOOT = "reboot, CDI files kept"


# A reboot takes a minute of start-up and backoff, a killed agent a second. These weights keep most rounds short.
_WEIGHTS = {
    Component.AGENT: 6,
    Component.HUNG_AGENT: 3,
    Component.KUBELET: 5,
    Component.CONTAINERD: 3,
    Component.SERVICE: 4,
    Component.KUBE_SCHEDULER: 2,
    Component.API_SERVER: 2,
    Component.ETCD: 1,
    Component.REBOOT: 1,
    Component.STALE_REBOOT: 1,
}
REBOOTS = frozenset({Component.REBOOT, Component.STALE_REBOOT})
# How long a hung agent hangs; shorter than the kubelet's timeout for creating a container.
HUNG_S = 3.0


class PodLifecycle(Enum):
    """How a pod starts and ends."""

    STAYS = "Always"
    """Its container restarts when it ends."""
    ONCE = "Never"
    """Its container starts once, so any failure is final."""
    JOB = "OnFailure"
    """It ends by itself after a second."""
    STUBBORN = "Always, and ignores SIGTERM"


@dataclass(frozen=True, slots=True)
class Create:
    """Create a pod."""

    name: str
    milli: int
    lifecycle: PodLifecycle


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a pod; with `force` at once, even if its container still runs."""

    name: str
    force: bool


@dataclass(frozen=True, slots=True)
class Crash:
    """Kill the process of a pod's container."""

    name: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize a pod's share."""

    name: str
    milli: int


@dataclass(frozen=True, slots=True)
class Disruption:
    """Kill a component and start it again after `away_s`."""

    component: Component
    away_s: float


Step = Create | Delete | Crash | Resize | Disruption


@dataclass(frozen=True, slots=True)
class Round:
    """Steps, each with the pause before it in seconds."""

    number: int
    steps: tuple[tuple[float, Step], ...]

    @property
    def components(self) -> tuple[Component, ...]:
        """The components that this round disrupts."""
        return tuple(step.component for _, step in self.steps if isinstance(step, Disruption))


WHOLE = 1000
# Two GPUs have 2000 milli, so some pods always wait.
_SIZES = (100, 200, 200, 300, 300, 500, 700, WHOLE)
PODS_MAX = 10
# The kubelet's backoff grows with each restart of a crashed container.
_CRASHES_MAX = 1
_PAUSE_S = 0.6


class Script:
    """Generates rounds. It knows which pods it created and has not deleted, and never asks for their state."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._alive: dict[str, Create] = {}
        self._crashes: dict[str, int] = {}
        self._made = 0

    def rounds(self, count: int) -> Iterator[Round]:
        """Generate the first `count` rounds."""
        for number in range(1, count + 1):
            yield self._round(number)

    def _round(self, number: int) -> Round:
        random = self._random
        steps: list[Step] = [self._pod_step() for _ in range(random.randint(2, 5))]
        disruptions = random.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()), k=random.choice((1, 1, 2)))
        if REBOOTS & set(disruptions):
            disruptions = disruptions[:1] if disruptions[0] in REBOOTS else disruptions[-1:]
        for component in dict.fromkeys(disruptions):
            steps.insert(random.randint(0, len(steps)), Disruption(component, random.choice((0.0, 0.0, 0.5, 2.0))))
        return Round(number, tuple((random.uniform(0, _PAUSE_S), step) for step in steps))

    def _pod_step(self) -> Step:
        random = self._random
        if len(self._alive) < 3 or (len(self._alive) < PODS_MAX and random.random() < 0.55):
            return self._create()
        name = random.choice(tuple(self._alive))
        made = self._alive[name]
        if (
            made.lifecycle is PodLifecycle.STAYS
            and self._crashes.get(name, 0) < _CRASHES_MAX
            and random.random() < 0.4
        ):
            self._crashes[name] = self._crashes.get(name, 0) + 1
            return Crash(name)
        if made.lifecycle is not PodLifecycle.JOB and made.milli < WHOLE and random.random() < 0.3:
            return Resize(name, random.choice(_SIZES[:-1]))
        del self._alive[name]
        return Delete(name, force=made.lifecycle is PodLifecycle.STUBBORN or random.random() < 0.2)

    def _create(self) -> Create:
        self._made += 1
        made = Create(f"pod-{self._made}", self._random.choice(_SIZES), self._random.choice(tuple(PodLifecycle)))
        self._alive[made.name] = made
        return made
