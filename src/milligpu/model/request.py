"""What a pod or a command asks for, after its dialect was read: the one form that everything behind speaks."""

from dataclasses import dataclass, field
from enum import StrEnum

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.labels import Gang, Locality
from milligpu.model.qos import Policy, Strategy
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli


@dataclass(frozen=True, slots=True)
class Slice:
    """A share of one particular card, in its own numbers."""

    milli: Milli
    mib: Mib
    limit: Milli
    """The most compute it may use while others leave room; never below `milli`."""
    whole: bool = False
    """The card itself, untouched: nobody else is on it and nothing of ours is in the way."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """The same share of each of `count` GPUs.

    Dialects leave different things unsaid. Compute unsaid is the fraction that the memory is of the card;
    memory unsaid is the fraction that the compute is. `card_memory` says memory as a fraction of whatever card
    it will be. A whole GPU is 1000 with nothing else said.
    """

    count: int = 1
    milli: Milli | None = None
    mib: Mib | None = None
    card_memory: Milli | None = None
    limit: Milli | None = None

    def __post_init__(self) -> None:
        _check("count", self.count, 1, GPUS_MAX)
        _check("milli", self.milli, 0, WHOLE)
        _check("mib", self.mib, 1, MIB_MAX)
        _check("card_memory", self.card_memory, 1, WHOLE)
        _check("limit", self.limit, max(1, self.milli or 0), WHOLE)
        if self.mib is not None and self.card_memory is not None:
            raise BadRequest("mib", self.mib, "either an amount or a fraction of the card, not both")
        if self.milli is None and self.mib is None and self.card_memory is None:
            raise BadRequest("milli", None, "compute, memory, or both")
        if self.milli == 0 and self.mib is None and self.card_memory is None:
            raise BadRequest("mib", None, "an amount of memory when no compute is guaranteed")

    @property
    def whole(self) -> bool:
        """Whether it asks for cards as they are."""
        return self.milli == WHOLE and self.mib is None and self.card_memory is None

    def on(self, gpu: Gpu, policy: Policy | None = None) -> Slice:
        """The share in this card's numbers; `policy` is the pod's own word, else the card's holds."""
        if self.mib is not None:
            mib = self.mib
        elif self.card_memory is not None:
            mib = gpu.mib_of(self.card_memory)
        else:
            mib = gpu.mib_of(self.milli or 0)
        milli = gpu.milli_of(mib) if self.milli is None else self.milli
        fixed = (policy or gpu.policy) is Policy.FIXED
        limit = self.limit if self.limit is not None else milli if fixed else WHOLE
        # A card is at least one MiB of memory; a thousandth of a small card still is something.
        return Slice(milli, Mib(max(1, mib)), Milli(max(limit, milli)), self.whole)


class Kind(StrEnum):
    """When a container runs; the kubelet's rules for adding up resources depend on it."""

    MAIN = "main"
    INIT = "init"
    """Runs before the main ones and ends."""
    SIDECAR = "sidecar"
    """An init container that stays (restartPolicy Always)."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container of a pod asks for; None is a container without a GPU."""

    name: str
    share: ShareRequest | None
    kind: Kind = Kind.MAIN


@dataclass(frozen=True, slots=True)
class PodRef:
    """Which pod; the uid tells it from a later one of the same name."""

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodRequest:
    """All that placement needs to know about a pod."""

    pod: PodRef
    containers: tuple[ContainerRequest, ...]
    """In the order of the manifest: init containers and sidecars first."""
    dialect: str = "native"
    policy: Policy | None = None
    """None leaves it to the card."""
    priority: int = 0
    strategy: Strategy | None = None
    requirements: Requirements = ANY
    gpu_class: str | None = None
    locality: Locality = field(default_factory=Locality)
    gang: Gang | None = None
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def wants_gpu(self) -> bool:
        """Whether any container asks for one."""
        return any(container.share is not None for container in self.containers)


def _check(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise BadRequest(name, value, f"{low} to {high}")
