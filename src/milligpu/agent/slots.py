"""When each tenant of a card runs while no arbiter is there: slots of a frame that repeats for ever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milligpu.model.qos import Policy
from milligpu.model.units import WHOLE, Milli
from milligpu.wire.limits import FRAME_US


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of every frame."""

    start_us: int
    length_us: int


def divide(tenants: Sequence[tuple[str, Milli]], policy: Policy) -> Mapping[str, Slot]:
    """One after the other in the order given, so that a newcomer moves nobody.

    A slot is as long as the share, never longer: without an arbiter nobody gains. Those who are guaranteed nothing
    divide what nobody was guaranteed, because a tenant without any slot would hang.
    """
    lengths = {name: FRAME_US * milli // WHOLE for name, milli in tenants}
    if policy is Policy.EQUAL:
        lengths = {name: FRAME_US // len(tenants) for name, _ in tenants}
    unguaranteed = [name for name, length in lengths.items() if not length]
    spare = FRAME_US - sum(lengths.values())
    for name in unguaranteed:
        lengths[name] = spare // len(unguaranteed)
    slots: dict[str, Slot] = {}
    start = 0
    for name, length in lengths.items():
        slots[name] = Slot(start, length)
        start += length
    return slots
