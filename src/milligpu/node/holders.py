"""Whose are these slots? Allocate does not say; the kubelet tells afterwards, in two places.

Its own record has the pod's uid and the very name that we answered with, so nothing has to be matched. Where that
record does not read, the pod-resources API is asked: it knows slots, and a container is believed to be the holder
only if nobody else could be.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from milligpu.kubelet.checkpoint import Recorded
from milligpu.kubelet.pod_resources import Held
from milligpu.node.ledger import Allocation


@dataclass(frozen=True, slots=True)
class Holder:
    """One container of one pod."""

    uid: str
    container: str


def by_record(promised: Iterable[Allocation], recorded: Iterable[Recorded]) -> dict[str, Holder]:
    """For each allocation's name, the holder that the kubelet's record has for it."""
    devices = {name: Holder(each.pod_uid, each.container) for each in recorded for name in each.devices}
    return {each.name: devices[each.device] for each in promised if each.device in devices}


def by_slots(
    promised: Iterable[Allocation], held: Sequence[Held], uids: Mapping[tuple[str, str], frozenset[str]]
) -> dict[str, Holder]:
    """For each allocation's name the container that has exactly its slots, where there can be only one.

    `uids` are the pods of this node by namespace and name: two of one name are possible while the first is going.
    """
    listed = list(promised)
    same = Counter((each.resource, each.slots) for each in listed)
    found: dict[str, Holder] = {}
    for each in listed:
        holders = [one for one in held if one.slots.get(each.resource) == each.slots]
        if len(holders) == 1 and same[each.resource, each.slots] == 1:
            pods = [*uids.get((holders[0].namespace, holders[0].pod), ())]
            if len(pods) == 1:
                found[each.name] = Holder(pods[0], holders[0].container)
    return found
