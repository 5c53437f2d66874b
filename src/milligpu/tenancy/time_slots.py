"""When each tenant of a GPU may run while no arbiter does: time slots of a frame that repeats. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milligpu.model.gpu import Gpu
from milligpu.model.policy import SharePolicy
from milligpu.model.units import WHOLE, Milli
from milligpu.wire.limits import FRAME_US


@dataclass(frozen=True, slots=True)
class TimeSlot:
    """A tenant's part of every frame."""

    start_us: int
    length_us: int


FRAME = TimeSlot(0, FRAME_US)


def pods_frame(gpu: Gpu) -> TimeSlot:
    """The part of a GPU's frame that is for pods."""
    return TimeSlot(0, FRAME_US * gpu.allocatable // gpu.milli)


def sessions_frame(gpu: Gpu, pods: int) -> TimeSlot:
    """The rest of a GPU's frame, where pods have `pods` milli-GPU of it."""
    start = FRAME_US * pods // gpu.milli
    return TimeSlot(start, FRAME_US - start)


def divide_frame(
    tenants: Sequence[tuple[str, Milli]], policy: SharePolicy, within: TimeSlot = FRAME, *, capacity: Milli = WHOLE
) -> Mapping[str, TimeSlot]:
    """Give the tenants their slots in the order given, so that a new tenant at the end moves no other.

    A slot is as long as the share: without an arbiter there is no idle time to use. Tenants with a share of 0
    divide what is left, because a tenant without a slot would hang. `capacity` is what the whole frame stands for:
    the compute of the GPU, which is less than 1000 for a vGPU.
    """
    lengths = {name: FRAME_US * milli // capacity for name, milli in tenants}
    if policy is SharePolicy.EQUAL:
        lengths = {name: within.length_us // len(tenants) for name, _ in tenants}
    unguaranteed = [name for name, length in lengths.items() if not length]
    spare = max(0, within.length_us - sum(lengths.values()))
    for name in unguaranteed:
        lengths[name] = spare // len(unguaranteed)
    slots: dict[str, TimeSlot] = {}
    start = within.start_us
    for name, length in lengths.items():
        slots[name] = TimeSlot(start, length)
        start += length
    return slots
