"""How many GPUs a pod needs, and how much of each: its containers' shares folded onto the pod's own GPUs.

Containers that run at the same time add up; init containers run before the main ones, on the same GPUs, so the
larger of the two counts (the formula Kubernetes uses for every resource, applied per GPU). Fractional shares
fold onto a GPU of the pod while they fit; a whole GPU is nobody else's while its container runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.model.qos import Policy
from milligpu.model.request import ContainerRequest, Kind, Slice
from milligpu.model.units import Mib, Milli


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pod takes of one GPU at its peak."""

    milli: Milli
    mib: Mib
    whole: bool = False

    def plus(self, other: "Demand") -> "Demand":
        """Both at the same time."""
        return Demand(Milli(self.milli + other.milli), Mib(self.mib + other.mib), self.whole or other.whole)


NOTHING = Demand(Milli(0), Mib(0))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The pod's GPUs, numbered from 0, and which of them each container uses."""

    demands: tuple[Demand, ...]
    slices: Mapping[str, tuple[tuple[int, Slice], ...]]
    """Container name to its (GPU number, share) pairs."""


class _Stage:
    """The running sums on the pod's GPUs while containers are added to them."""

    def __init__(self, gpu: Gpu, running: Iterable[Demand] = ()) -> None:
        self.gpu = gpu
        self.gpus = list(running)

    def add(self, count: int, part: Slice) -> tuple[tuple[int, Slice], ...]:
        placed: list[tuple[int, Slice]] = []
        for number in range(len(self.gpus) + count):
            if len(placed) == count:
                break
            if number == len(self.gpus):
                self.gpus.append(NOTHING)
            if self._takes(self.gpus[number], part):
                self.gpus[number] = self.gpus[number].plus(Demand(part.milli, part.mib, part.whole))
                placed.append((number, part))
        return tuple(placed)

    def _takes(self, now: Demand, part: Slice) -> bool:
        empty = now.milli == 0 and now.mib == 0
        if now.whole or part.whole:
            return empty
        # What exceeds even an empty card goes onto one by itself: placement then says that it is too large.
        return empty or (now.milli + part.milli <= self.gpu.milli and now.mib + part.mib <= self.gpu.mib)


def footprint(containers: Iterable[ContainerRequest], gpu: Gpu, policy: Policy | None = None) -> Footprint:
    """Fold a pod's containers onto GPUs like this one."""
    order = sorted(containers, key=lambda container: container.kind is Kind.MAIN)
    running = _Stage(gpu)
    most: list[Demand] = []
    slices: dict[str, tuple[tuple[int, Slice], ...]] = {}
    for container in order:
        if container.share is None:
            continue
        part = container.share.on(gpu, policy)
        # An init container leaves before the next one starts: it is added to a copy.
        stage = _Stage(gpu, running.gpus) if container.kind is Kind.INIT else running
        slices[container.name] = stage.add(container.share.count, part)
        most = _larger(most, stage.gpus)
    return Footprint(tuple(most), slices)


def _larger(a: list[Demand], b: list[Demand]) -> list[Demand]:
    longest = max(len(a), len(b))
    pairs = zip(a + [NOTHING] * (longest - len(a)), b + [NOTHING] * (longest - len(b)), strict=True)
    return [peak(x, y) for x, y in pairs]


def held(
    shares: Mapping[str, Iterable[GpuShare]], kinds: Mapping[str, Kind], cards: Mapping[str, Gpu]
) -> dict[str, Demand]:
    """What a grant takes of each card at its peak, by the same formula; a whole card is all of it.

    `kinds` has the pod's containers in the order in which they start; one that it does not know counts as running
    with all others. A card that is not among `cards` is counted by the grant's own numbers.
    """
    order = [name for name in kinds if name in shares] + [name for name in shares if name not in kinds]
    running: dict[str, Demand] = {}
    most: dict[str, Demand] = {}
    for name in order:
        stage = dict(running)
        for share in shares[name]:
            stage[share.gpu] = stage.get(share.gpu, NOTHING).plus(_demand(share, cards.get(share.gpu)))
        for gpu, demand in stage.items():
            most[gpu] = peak(most.get(gpu, NOTHING), demand)
        if kinds.get(name, Kind.MAIN) is not Kind.INIT:
            running = stage
    return most


def _demand(share: GpuShare, card: Gpu | None) -> Demand:
    if share.whole and card is not None:
        return Demand(card.milli, card.mib, whole=True)
    return Demand(share.milli, share.mib, share.whole)


def peak(a: Demand, b: Demand) -> Demand:
    """The larger of two that are never there at the same time."""
    return Demand(max(a.milli, b.milli), max(a.mib, b.mib), a.whole or b.whole)
