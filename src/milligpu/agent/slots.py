"""When each tenant of a card runs while no arbiter is there: slots of a frame that repeats for ever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.qos import Policy
from milligpu.model.units import WHOLE, Milli
from milligpu.wire.limits import FRAME_US


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of every frame."""

    start_us: int
    length_us: int


FRAME = Slot(0, FRAME_US)


def front(gpu: Gpu) -> Slot:
    """The part of a card's frame that is not set aside."""
    return Slot(0, FRAME_US * gpu.usable // gpu.milli)


def back(gpu: Gpu) -> Slot:
    """The part that is left by those for whom the card's reserve is."""
    start = FRAME_US * gpu.reserved // gpu.milli
    return Slot(start, FRAME_US - start)


def divide(tenants: Sequence[tuple[str, Milli]], policy: Policy, within: Slot = FRAME) -> Mapping[str, Slot]:
    """One after the other in the order given, so that a newcomer moves nobody.

    A slot is as long as the share, never longer: without an arbiter nobody gains. Those who are guaranteed nothing
    divide what nobody was guaranteed, because a tenant without any slot would hang.
    """
    lengths = {name: FRAME_US * milli // WHOLE for name, milli in tenants}
    if policy is Policy.EQUAL:
        lengths = {name: within.length_us // len(tenants) for name, _ in tenants}
    unguaranteed = [name for name, length in lengths.items() if not length]
    spare = max(0, within.length_us - sum(lengths.values()))
    for name in unguaranteed:
        lengths[name] = spare // len(unguaranteed)
    slots: dict[str, Slot] = {}
    start = within.start_us
    for name, length in lengths.items():
        slots[name] = Slot(start, length)
        start += length
    return slots
