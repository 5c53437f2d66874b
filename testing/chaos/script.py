"""What happens in each round, from a seed alone: the same seed gives the same sequence. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from random import Random


class Part(StrEnum):
    """What is hurt."""

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


# A reboot costs a minute of start-up and backoff, an agent's death a second: most rounds are short.
_WEIGHTS = {
    Part.AGENT: 6,
    Part.HUNG_AGENT: 3,
    Part.KUBELET: 5,
    Part.CONTAINERD: 3,
    Part.SERVICE: 4,
    Part.KUBE_SCHEDULER: 2,
    Part.API_SERVER: 2,
    Part.ETCD: 1,
    Part.REBOOT: 1,
    Part.STALE_REBOOT: 1,
}
REBOOTS = frozenset({Part.REBOOT, Part.STALE_REBOOT})
# How long a hung agent hangs: within the kubelet's patience with a container that is being made.
HUNG_S = 3.0


class Manner(Enum):
    """How a pod lives."""

    STAYS = "Always"
    """Its container is started again when it dies."""
    ONCE = "Never"
    """Its container is started once: whatever goes wrong with that is final."""
    JOB = "OnFailure"
    """It ends by itself after a moment."""
    STUBBORN = "Always, and ignores SIGTERM"


@dataclass(frozen=True, slots=True)
class Create:
    """A pod is made."""

    name: str
    milli: int
    manner: Manner


@dataclass(frozen=True, slots=True)
class Delete:
    """A pod is deleted; `force` forgets it at once, whether or not its container still runs."""

    name: str
    force: bool


@dataclass(frozen=True, slots=True)
class Crash:
    """The process of a pod's container is killed."""

    name: str


@dataclass(frozen=True, slots=True)
class Resize:
    """A pod is to have another share."""

    name: str
    milli: int


@dataclass(frozen=True, slots=True)
class Blow:
    """A part is killed, and started again after a while."""

    part: Part
    away_s: float


Step = Create | Delete | Crash | Resize | Blow


@dataclass(frozen=True, slots=True)
class Round:
    """Steps, each with the pause before it."""

    number: int
    steps: tuple[tuple[float, Step], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is hurt in it."""
        return tuple(step.part for _, step in self.steps if isinstance(step, Blow))


WHOLE = 1000
# Two cards have 2000: some pods always wait.
_SIZES = (100, 200, 200, 300, 300, 500, 700, WHOLE)
PODS_MAX = 10
# The kubelet waits longer before each further start of a container that crashes.
_CRASHES_MAX = 1
_PAUSE_S = 0.6


class Script:
    """Knows which pods it has made and not deleted; what became of them it never asks."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._alive: dict[str, Create] = {}
        self._crashes: dict[str, int] = {}
        self._made = 0

    def rounds(self, count: int) -> Iterator[Round]:
        """The first rounds."""
        for number in range(1, count + 1):
            yield self._round(number)

    def _round(self, number: int) -> Round:
        dice = self._random
        steps: list[Step] = [self._pod_step() for _ in range(dice.randint(2, 5))]
        blows = dice.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()), k=dice.choice((1, 1, 2)))
        if REBOOTS & set(blows):
            blows = blows[:1] if blows[0] in REBOOTS else blows[-1:]
        for part in dict.fromkeys(blows):
            steps.insert(dice.randint(0, len(steps)), Blow(part, dice.choice((0.0, 0.0, 0.5, 2.0))))
        return Round(number, tuple((dice.uniform(0, _PAUSE_S), step) for step in steps))

    def _pod_step(self) -> Step:
        dice = self._random
        if len(self._alive) < 3 or (len(self._alive) < PODS_MAX and dice.random() < 0.55):
            return self._create()
        name = dice.choice(tuple(self._alive))
        made = self._alive[name]
        if made.manner is Manner.STAYS and self._crashes.get(name, 0) < _CRASHES_MAX and dice.random() < 0.4:
            self._crashes[name] = self._crashes.get(name, 0) + 1
            return Crash(name)
        if made.manner is not Manner.JOB and made.milli < WHOLE and dice.random() < 0.3:
            return Resize(name, dice.choice(_SIZES[:-1]))
        del self._alive[name]
        return Delete(name, force=made.manner is Manner.STUBBORN or dice.random() < 0.2)

    def _create(self) -> Create:
        self._made += 1
        made = Create(f"pod-{self._made}", self._random.choice(_SIZES), self._random.choice(tuple(Manner)))
        self._alive[made.name] = made
        return made
