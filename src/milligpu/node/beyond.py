"""Memory beyond a cap: what pods still use after a resize lowered it, and nobody else can have yet."""

from collections.abc import Iterable

from milligpu.model.units import Mib
from milligpu.node.cards import CardWatch
from milligpu.node.checks import Tenancy
from milligpu.node.processes import pod_of_process


async def used_by_resized(cards: CardWatch, tenancies: Iterable[Tenancy]) -> dict[tuple[str, str], Mib]:
    """By pod and card, what those use who were ever resized, as the driver counts it; tenants are not asked."""
    resized = {each.uid: each for each in tenancies if each.grant.generation > 1}
    if not resized:
        return {}
    await cards.read()
    found: dict[tuple[str, str], Mib] = {}
    for gpu in {gpu for each in resized.values() for gpu in each.grant.gpus} & cards.readings.keys():
        for process in cards.readings[gpu].processes:
            uid = pod_of_process(process.pid)
            if uid in resized:
                found[uid, gpu] = Mib(found.get((uid, gpu), 0) + (process.memory or 0))
    return found
