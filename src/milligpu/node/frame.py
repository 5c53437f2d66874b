"""When containers run while no arbiter is there: each pod has a part of the frame, containers parts of it. Pure.

Containers of a pod that never run at the same time (an init container and those that follow it) use the same part,
so that a pod takes no more of the frame than it was granted of the card.
"""

from collections.abc import Iterable, Mapping

from milligpu.agent.slots import FRAME, Slot, divide
from milligpu.model.footprint import held
from milligpu.model.request import Kind
from milligpu.model.units import Milli
from milligpu.node.attach import Attached
from milligpu.node.checks import Tenancy


def frame(gpu: str, here: Iterable[Attached], within: Slot = FRAME) -> dict[str, Slot]:
    """The slots on one card of those who share it, by their names; `within` is the part of the frame for them."""
    containers = {each.name: each for each in here}
    if not containers:
        return {}
    # Who is guaranteed nothing has a part of what nobody was guaranteed, apart from the rest of its pod.
    parts = {name: _part(each.tenancy, each.container, gpu) for name, each in containers.items()}
    keys = {name: containers[name].tenancy.uid if milli else name for name, (_, milli) in parts.items()}
    wholes = {keys[name]: _peak(each.tenancy, gpu) if parts[name][1] else 0 for name, each in containers.items()}
    policy = next(iter(containers.values())).tenancy.grant.policy
    slots = divide([(key, Milli(milli)) for key, milli in wholes.items()], policy, within)
    return {name: _within(slots[keys[name]], *part, wholes[keys[name]]) for name, part in parts.items()}


def _within(slot: Slot, start: int, milli: int, whole: int) -> Slot:
    """So many thousandths of a pod's part, which stands for the whole of them."""
    if not whole:
        return slot
    begin = slot.length_us * min(start, whole) // whole
    end = slot.length_us * min(start + milli, whole) // whole
    return Slot(slot.start_us + begin, end - begin)


def _part(tenancy: Tenancy, container: str, gpu: str) -> tuple[int, int]:
    """Where a container's share begins behind those that run beside it and came before, and how much it is."""
    start = 0
    for name in _order(tenancy.kinds, tenancy.grant.containers):
        mine = sum(share.milli for share in tenancy.grant.containers[name] if share.gpu == gpu)
        if name == container:
            return start, mine
        if tenancy.kinds.get(name, Kind.MAIN) is not Kind.INIT:
            start += mine
    return start, 0


def _order(kinds: Mapping[str, Kind], granted: Iterable[str]) -> list[str]:
    names = list(granted)
    return [name for name in kinds if name in names] + [name for name in names if name not in kinds]


def _peak(tenancy: Tenancy, gpu: str) -> int:
    return held(tenancy.grant.containers, tenancy.kinds, {})[gpu].milli
