"""GPU sets: the GPUs of a node with the best links between them."""

from collections.abc import Iterator
from itertools import islice

from milligpu.placement.snapshot import GpuTopology


def best_gpu_set(wiring: GpuTopology, bits: int, count: int, *, nvlink: bool, numa: bool) -> tuple[int, ...] | None:
    """The set with the best weakest link, then with the best sum of links, then on the fewest NUMA nodes."""
    best: tuple[int, ...] | None = None
    quality: tuple[int, int, int] = (-1, 0, 0)
    for group in _groups(wiring, bits, count, nvlink, numa):
        found = gpu_set_quality(wiring, group)
        if found > quality:
            best, quality = group, found
    return best


def gpu_set_quality(wiring: GpuTopology, group: tuple[int, ...]) -> tuple[int, int, int]:
    """How good the links of a set are; larger is better."""
    links = [wiring.ranks[a][b] for at, a in enumerate(group) for b in group[at + 1 :]]
    return min(links, default=0), sum(links), -len({wiring.numa[gpu] for gpu in group})


# Choosing 8 of 16 GPUs is 12,870 groups; a first few thousand hold one that is as good.
_LOOK_MAX = 4096


def _groups(wiring: GpuTopology, bits: int, count: int, nvlink: bool, numa: bool) -> Iterator[tuple[int, ...]]:
    gpus = [gpu for gpu in range(bits.bit_length()) if bits >> gpu & 1]

    def extend(group: tuple[int, ...], at: int) -> Iterator[tuple[int, ...]]:
        if len(group) == count:
            yield group
            return
        for place in range(at, len(gpus) - (count - len(group)) + 1):
            gpu = gpus[place]
            if numa and group and wiring.numa[gpu] != wiring.numa[group[0]]:
                continue
            if nvlink and any(not wiring.nvlink[gpu] >> other & 1 for other in group):
                continue
            yield from extend((*group, gpu), place + 1)

    yield from islice(extend((), 0), _LOOK_MAX)
