"""How many slots the kubelet may count with. Pure.

Slots are anonymous: a card that falls sick takes free ones away, whichever they are, and never one in use, because
the kubelet's choice of slots has nothing to do with cards.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import count, islice

from milligpu.model.footprint import Demand
from milligpu.model.gpu import Gpu, State


def share_capacity(gpus: Iterable[Gpu], held: dict[str, Demand]) -> int:
    """Milli-GPU: all of the cards that may be used, and of the others what is in use."""
    return sum(
        gpu.usable if gpu.state is State.OK else held[gpu.uuid].milli if gpu.uuid in held else 0 for gpu in gpus
    )


def whole_capacity(gpus: Iterable[Gpu], held: dict[str, Demand]) -> int:
    """Whole cards, likewise; one of which a part is set aside is not whole."""
    return sum(
        not gpu.reserved if gpu.state is State.OK else gpu.uuid in held and held[gpu.uuid].whole for gpu in gpus
    )


def offer(capacity: int, used: Collection[str]) -> frozenset[str]:
    """The slots to show: those in use, and free ones up to the capacity."""
    if _first(capacity).issuperset(used):
        return _first(capacity)
    free = (name for number in count() if (name := str(number)) not in used)
    return frozenset(used) | frozenset(islice(free, max(0, capacity - len(used))))


@lru_cache(maxsize=8)
def _first(capacity: int) -> frozenset[str]:
    """While all cards are well, what is offered never changes, however many slots are in use."""
    return frozenset(str(number) for number in range(capacity))
