"""The nearest smaller request that would fit; it changes only what does not fit."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from milligpu.model.affinity import AffinityLabels
from milligpu.model.gpu import Gpu
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import WHOLE, Mib, Milli, show_mib, show_milli
from milligpu.placement.fit import Fitter, RequestKey, RequestSpec
from milligpu.placement.snapshot import IntArray, Snapshot

# Fine enough to find the last MiB of a GPU with 64 GiB.
_PARTS = 1 << 16
_LEAST = 1


class SpecSource(Protocol):
    """What explanations need: the snapshot, and how requests become numbers."""

    snapshot: Snapshot
    fitter: Fitter

    def spec(self, request: PodRequest) -> RequestSpec:
        """The request in numbers."""
        ...


def nearest_fit(placer: SpecSource, request: PodRequest, rows: IntArray) -> PodRequest | None:
    """The nearest smaller request that fits now, in one call."""
    steps = nearest_fit_in_steps(placer, request, rows)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def nearest_fit_in_steps(
    placer: SpecSource, request: PodRequest, rows: IntArray
) -> Generator[None, None, PodRequest | None]:
    """Find the nearest smaller request that fits now: fewer GPUs, else less of each, else less CPU or memory."""
    if not len(rows):
        return None
    probe = _Probe(placer, request, rows)
    for smaller in _fewer(request):
        if probe.fits(smaller):
            return smaller
        yield
    if request.wants_gpu:
        kept = yield from _most_kept(probe)
        if kept is not None:
            return probe.smaller(kept)
    return _frugal(placer, request, probe.spec(replace(request, cpu_milli=0)), rows)


@dataclass(frozen=True, slots=True)
class _Kept:
    """How much of the requested compute and memory of each GPU is kept, in parts of `_PARTS`."""

    compute: int = _PARTS
    memory: int = _PARTS


def _most_kept(probe: "_Probe") -> Generator[None, None, _Kept | None]:
    """Keep as much compute as fits, then the memory that goes with it; or the other way round, if more stays."""
    compute = yield from probe.most(lambda part: _Kept(part, _LEAST))
    if not compute:
        return None
    memory = yield from probe.most(lambda part: _Kept(compute, part))
    found = _Kept(compute, memory)
    if _PARTS in (compute, memory) or not probe.names_memory:
        return found
    memory = yield from probe.most(lambda part: _Kept(_LEAST, part))
    compute = yield from probe.most(lambda part: _Kept(part, memory))
    return max(found, _Kept(compute, memory), key=lambda kept: kept.compute + kept.memory)


class _Probe:
    """Tries smaller forms of one request."""

    def __init__(self, placer: SpecSource, request: PodRequest, rows: IntArray) -> None:
        self._snap = placer.snapshot
        self._fitter = placer.fitter
        self._request = request
        self._rows = np.sort(rows)
        self._wants = placer.spec(request).key.requirements
        kinds = [self._snap.kind_gpus[int(kind)] for kind in set(self._snap.kind[rows].tolist())]
        self._kinds = [gpu for gpu in kinds if gpu.uuid]
        shares = [container.share for container in request.containers if container.share is not None]
        self.names_memory = any(share.mib is not None or share.card_memory is not None for share in shares)

    def spec(self, smaller: PodRequest) -> RequestSpec:
        # Not kept in the placer, because no pod requested it.
        key = RequestKey.of(replace(smaller, gpu_class=None))
        return RequestSpec(replace(key, requirements=self._wants), self._snap)

    def fits(self, smaller: PodRequest) -> bool:
        labels = None if smaller.locality == AffinityLabels() else smaller.locality
        found = self._fitter.find(self.spec(smaller), self._rows, labels)
        return bool((self._snap.memory[found.rows] >= smaller.memory_mib).any())

    def smaller(self, kept: _Kept) -> PodRequest:
        return _with(self._request, lambda share: _scaled(share, kept, self._kinds))

    def most(self, kept: Callable[[int], _Kept]) -> Generator[None, None, int]:
        """The largest part with which the request fits; 0 if it does not fit even with the smallest."""
        low, high = _LEAST, _PARTS
        for part in (high, low):
            if self.fits(self.smaller(kept(part))):
                break
            yield
        else:
            return 0
        if part == high:
            return high
        while high - low > 1:
            yield
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(self.smaller(kept(middle))) else (low, middle)
        return low


def _scaled(share: ShareRequest, kept: _Kept, kinds: Sequence[Gpu]) -> ShareRequest:
    """Reduce the compute and memory of a share.

    Memory that the share leaves out follows from its compute, and compute from its memory. Either is written down
    only if it becomes smaller than that.
    """
    milli, mib = share.milli, share.mib
    if milli is None and kept.compute < kept.memory:
        like = [gpu.milli_of(mib) if mib is not None else share.card_memory or WHOLE for gpu in kinds]
        milli = min(WHOLE, max(like, default=WHOLE))
    if mib is None and share.card_memory is None and kept.memory < kept.compute:
        mib = max((gpu.mib_of(milli or 0) for gpu in kinds), default=None)
    gpu_memory = _part(share.card_memory, kept.memory)
    return replace(
        share,
        milli=None if milli is None else Milli(_part(milli, kept.compute) or 0),
        mib=None if mib is None else Mib(_part(mib, kept.memory) or 1),
        card_memory=None if gpu_memory is None else Milli(gpu_memory),
        limit=None,
    )


def _part(value: int | None, parts: int) -> int | None:
    return value if not value else max(1, value * parts // _PARTS)


def _fewer(request: PodRequest) -> Iterator[PodRequest]:
    shares = [container.share for container in request.containers if container.share is not None]
    most = max((share.count for share in shares), default=1)
    for count in range(most - 1, 0, -1):
        yield _with(request, lambda share, count=count: replace(share, count=min(count, share.count)))


def _frugal(placer: SpecSource, request: PodRequest, spec: RequestSpec, rows: IntArray) -> PodRequest | None:
    """The same GPUs with the CPU and memory that are left on the node that has most of them."""
    snap = placer.snapshot
    labels = None if request.locality == AffinityLabels() else request.locality
    found = placer.fitter.find(spec, np.sort(rows), labels).rows
    if not len(found):
        return None
    cpu = np.minimum(snap.cpu[found], request.cpu_milli)
    memory = np.minimum(snap.memory[found], request.memory_mib)
    best = int(np.lexsort((memory, cpu))[-1])
    return replace(request, cpu_milli=max(0, int(cpu[best])), memory_mib=max(0, int(memory[best])))


def _with(request: PodRequest, change: "_Change") -> PodRequest:
    containers = tuple(
        container if container.share is None else replace(container, share=change(container.share))
        for container in request.containers
    )
    return replace(request, containers=containers)


class _Change(Protocol):
    def __call__(self, share: ShareRequest, /) -> ShareRequest: ...


def describe_difference(smaller: PodRequest, asked: PodRequest) -> str:
    """A request as a person would ask for it, as far as it differs from what was asked."""
    parts = [
        _share(share)
        for container in smaller.containers
        if (share := container.share) is not None and smaller.containers != asked.containers
    ]
    if smaller.cpu_milli != asked.cpu_milli:
        parts.append(f"{smaller.cpu_milli}m CPU")
    if smaller.memory_mib != asked.memory_mib:
        parts.append(f"{show_mib(smaller.memory_mib)} of memory")
    return " + ".join(parts)


def _share(share: ShareRequest) -> str:
    many = "" if share.count == 1 else f"{share.count} x "
    size = [] if share.milli is None or (share.milli == 0) else [f"{show_milli(share.milli)} GPU"]
    if share.milli == WHOLE and share.count > 1:
        many, size = "", [f"{share.count} GPUs"]
    if share.mib is not None:
        size.append(show_mib(share.mib))
    if share.card_memory is not None:
        size.append(f"{show_milli(share.card_memory)} of the GPU's memory")
    return many + " with ".join(size)
