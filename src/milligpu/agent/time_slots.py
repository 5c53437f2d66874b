"""When containers may run without an arbiter: each pod has a part of the frame, and its containers parts of that.

Containers of a pod that never run at the same time, such as an init container and the main ones, use the same part,
so a pod gets no more of the frame than it was granted of the GPU. Pure.
"""

from collections.abc import Iterable

from milligpu.agent.attachment import Attachment
from milligpu.model.footprint import grant_demands
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind
from milligpu.model.units import WHOLE, Milli
from milligpu.tenancy.time_slots import FRAME, TimeSlot, divide_frame


def container_time_slots(
    gpu: str,
    here: Iterable[Attachment],
    policy: SharePolicy,
    within: TimeSlot = FRAME,
    *,
    capacity: Milli = WHOLE,
) -> dict[str, TimeSlot]:
    """Divide one GPU's frame, or the part `within` it, among its containers, by their names.

    `capacity` is the compute of the GPU.
    """
    containers = {each.name: each for each in here}
    if not containers:
        return {}
    # A container with a share of 0 gets a slot of what is left, apart from the rest of its pod.
    parts = {name: _part(each, gpu) for name, each in containers.items()}
    keys = {name: containers[name].holder.uid if milli else name for name, (_, milli) in parts.items()}
    wholes = {keys[name]: _peak(each, gpu) if parts[name][1] else 0 for name, each in containers.items()}
    slots = divide_frame([(key, Milli(milli)) for key, milli in wholes.items()], policy, within, capacity=capacity)
    return {name: _within(slots[keys[name]], *part, wholes[keys[name]]) for name, part in parts.items()}


def _within(slot: TimeSlot, start: int, milli: int, whole: int) -> TimeSlot:
    """Cut a container's part out of its pod's slot, which stands for `whole` milli-GPU."""
    if not whole:
        return slot
    begin = slot.length_us * min(start, whole) // whole
    end = slot.length_us * min(start + milli, whole) // whole
    return TimeSlot(slot.start_us + begin, end - begin)


def _part(attached: Attachment, gpu: str) -> tuple[int, int]:
    """Return where a container's share begins, after those of containers that still run, and its size."""
    grant, kinds = attached.grant, attached.kinds
    order = [name for name in kinds if name in grant.containers]
    order += [name for name in grant.containers if name not in kinds]
    start = 0
    for name in order:
        mine = sum(held.share.milli for held in grant.containers[name] if held.gpu == gpu)
        if name == attached.holder.container:
            return start, mine
        if kinds.get(name, ContainerKind.MAIN) is not ContainerKind.INIT:
            start += mine
    return start, 0


def _peak(attached: Attachment, gpu: str) -> int:
    return grant_demands(attached.grant.containers, attached.kinds, {})[gpu].milli
