"""How many GPUs a pod needs, and how much of each: its containers' shares folded onto the pod's own GPUs.

Containers that run at the same time add up; init containers run before the main ones, on the same GPUs, so the
larger of the two counts (the formula Kubernetes uses for every resource, applied per GPU). Fractional shares
fold onto a GPU of the pod while they fit; while a container runs, its whole GPU takes no other share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind, ContainerRequest, Share
from milligpu.model.units import Mib, Milli


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """What a pod takes of one GPU at its peak."""

    milli: Milli
    mib: Mib
    whole: bool = False

    def plus(self, other: "GpuDemand") -> "GpuDemand":
        """Add another demand that exists at the same time."""
        return GpuDemand(Milli(self.milli + other.milli), Mib(self.mib + other.mib), self.whole or other.whole)

    def part_of(self, gpu: Gpu) -> Milli:
        """Return the demand as a part of the GPU: of its compute or of its memory, whichever is more."""
        memory = -(-self.mib * gpu.milli // gpu.mib)
        return Milli(min(gpu.milli, max(self.milli, memory)))


NO_DEMAND = GpuDemand(Milli(0), Mib(0))


def demand_of(share: Share) -> GpuDemand:
    """Return what one share takes of its GPU; a limit above the share takes nothing."""
    return GpuDemand(share.milli, share.mib, share.whole)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The pod's GPUs, numbered from 0, and which of them each container uses."""

    demands: tuple[GpuDemand, ...]
    slices: Mapping[str, tuple[tuple[int, Share], ...]]
    """Container name to its (GPU number, share) pairs."""


class _Stage:
    """The running sums on the pod's GPUs while containers are added to them."""

    def __init__(self, gpu: Gpu, running: Iterable[GpuDemand] = ()) -> None:
        self.gpu = gpu
        self.gpus = list(running)

    def add(self, count: int, part: Share) -> tuple[tuple[int, Share], ...]:
        placed: list[tuple[int, Share]] = []
        for number in range(len(self.gpus) + count):
            if len(placed) == count:
                break
            if number == len(self.gpus):
                self.gpus.append(NO_DEMAND)
            if self._takes(self.gpus[number], part):
                self.gpus[number] = self.gpus[number].plus(demand_of(part))
                placed.append((number, part))
        return tuple(placed)

    def _takes(self, now: GpuDemand, part: Share) -> bool:
        empty = now.milli == 0 and now.mib == 0
        if now.whole or part.whole:
            return empty
        # A share larger than an empty GPU gets a GPU for itself: placement then refuses it as too large.
        return empty or (now.milli + part.milli <= self.gpu.milli and now.mib + part.mib <= self.gpu.mib)


def footprint(containers: Iterable[ContainerRequest], gpu: Gpu, policy: SharePolicy | None = None) -> Footprint:
    """Fold the containers of a pod that names this policy onto GPUs like this one."""
    order = sorted(containers, key=lambda container: container.kind is ContainerKind.MAIN)
    running = _Stage(gpu)
    most: list[GpuDemand] = []
    slices: dict[str, tuple[tuple[int, Share], ...]] = {}
    for container in order:
        if container.share is None:
            continue
        part = container.share.resolve(gpu, policy)
        # An init container ends before the next container starts, so it is added to a copy.
        stage = _Stage(gpu, running.gpus) if container.kind is ContainerKind.INIT else running
        slices[container.name] = stage.add(container.share.count, part)
        most = _larger(most, stage.gpus)
    return Footprint(tuple(most), slices)


def _larger(a: list[GpuDemand], b: list[GpuDemand]) -> list[GpuDemand]:
    longest = max(len(a), len(b))
    pairs = zip(a + [NO_DEMAND] * (longest - len(a)), b + [NO_DEMAND] * (longest - len(b)), strict=True)
    return [larger_demand(x, y) for x, y in pairs]


def grant_demands(
    shares: Mapping[str, Iterable[GpuShare]], kinds: Mapping[str, ContainerKind], gpus: Mapping[str, Gpu]
) -> dict[str, GpuDemand]:
    """Return what a grant takes of each GPU at its peak, by the same formula.

    `kinds` has the pod's containers in the order in which they start; a container that is not in it counts as
    running with all others. A GPU that is not in `gpus` is counted with the grant's own numbers.
    """
    order = [name for name in kinds if name in shares] + [name for name in shares if name not in kinds]
    running: dict[str, GpuDemand] = {}
    most: dict[str, GpuDemand] = {}
    for name in order:
        stage = dict(running)
        for share in shares[name]:
            stage[share.gpu] = stage.get(share.gpu, NO_DEMAND).plus(demand_of(share.resolve(gpus.get(share.gpu))))
        for gpu, demand in stage.items():
            most[gpu] = larger_demand(most.get(gpu, NO_DEMAND), demand)
        if kinds.get(name, ContainerKind.MAIN) is not ContainerKind.INIT:
            running = stage
    return most


def larger_demand(a: GpuDemand, b: GpuDemand) -> GpuDemand:
    """Return the larger of two demands that never exist at the same time."""
    return GpuDemand(max(a.milli, b.milli), max(a.mib, b.mib), a.whole or b.whole)
