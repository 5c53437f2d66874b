"""How many slots the kubelet may count with. Pure.

Slots are anonymous: a card that falls sick takes free ones away, whichever they are, and never one in use, because
the kubelet's choice of slots has nothing to do with cards.
"""

from collections.abc import Collection, Iterable
from functools import cache

from milligpu.model.footprint import Demand
from milligpu.model.gpu import Gpu, State
from milligpu.model.units import WHOLE


def share_capacity(gpus: Iterable[Gpu], held: dict[str, Demand]) -> int:
    """Milli-GPU: all of the cards that may be used, and of the others what is in use."""
    return sum(
        gpu.milli - gpu.reserved if gpu.state is State.OK else held[gpu.uuid].milli if gpu.uuid in held else 0
        for gpu in gpus
    )


def whole_capacity(gpus: Iterable[Gpu], held: dict[str, Demand]) -> int:
    """Whole cards, likewise; one of which a part is set aside is not whole."""
    return sum(
        not gpu.reserved if gpu.state is State.OK else gpu.uuid in held and held[gpu.uuid].whole for gpu in gpus
    )


def offer(capacity: int, most: int, used: Collection[str]) -> frozenset[str]:
    """The slots to show: those in use, and free ones up to the capacity; `most` is how many there ever are."""
    if capacity >= most:
        return _all(most)
    free = (str(number) for number in range(most) if str(number) not in used)
    return frozenset(used) | {slot for slot, _ in zip(free, range(capacity - len(used)), strict=False)}


@cache
def _all(most: int) -> frozenset[str]:
    """While all cards are well, what is offered never changes, however many slots are in use."""
    return frozenset(str(number) for number in range(most))


def most_shares(count: int) -> int:
    """More than any sum of cards: numbers of slots in use never run out under those that are free."""
    return count * WHOLE
