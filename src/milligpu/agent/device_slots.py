"""The device slots that are offered to the kubelet. Pure.

Slots are anonymous: for an unhealthy GPU any free slots are withdrawn, and never one in use, because slots do not
belong to a GPU.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import count, islice

from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu, GpuState


def share_capacity(gpus: Iterable[Gpu], held: dict[str, GpuDemand]) -> int:
    """Count slots of milli-GPU: all of the usable GPUs, and of the others what is in use."""
    return sum(
        gpu.allocatable if gpu.state is GpuState.OK else held[gpu.uuid].milli if gpu.uuid in held else 0
        for gpu in gpus
    )


def whole_capacity(gpus: Iterable[Gpu], held: dict[str, GpuDemand]) -> int:
    """Count slots of whole GPUs, likewise; a GPU with a reserved part is not whole."""
    return sum(
        not gpu.reserved if gpu.state is GpuState.OK else gpu.uuid in held and held[gpu.uuid].whole for gpu in gpus
    )


def choose_device_slots(capacity: int, used: Collection[str]) -> frozenset[str]:
    """Return the slots to offer: those in use, and free ones up to the capacity."""
    if _first(capacity).issuperset(used):
        return _first(capacity)
    free = (name for number in count() if (name := str(number)) not in used)
    return frozenset(used) | frozenset(islice(free, max(0, capacity - len(used))))


@lru_cache(maxsize=8)
def _first(capacity: int) -> frozenset[str]:
    """Return the first slots; while all GPUs are healthy, exactly these are offered."""
    return frozenset(str(number) for number in range(capacity))
