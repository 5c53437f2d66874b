"""Which container an allocation belongs to. Allocate does not say; the kubelet shows it afterwards, in two places.

Its checkpoint has the pod's uid and the CDI name that Allocate answered with. If the checkpoint cannot be read, the
pod-resources API is asked: it knows slots, and a container counts as the owner only if no other one can be.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from milligpu.agent.attachment import Allocation
from milligpu.kubelet.held_devices import HeldDevices
from milligpu.model.request import ContainerRef, container_of_uid


def owners_from_checkpoint(
    allocations: Iterable[Allocation], held: Iterable[HeldDevices]
) -> dict[str, ContainerRef]:
    """Return the owner of each allocation, by the allocation's name, where the checkpoint has it."""
    owners = {name: container_of_uid(each.pod.uid, each.container) for each in held for name in each.cdi_names}
    return {each.name: owners[each.device] for each in allocations if each.device in owners}


def owners_from_pod_resources(
    allocations: Iterable[Allocation], held: Sequence[HeldDevices], uids: Mapping[tuple[str, str], frozenset[str]]
) -> dict[str, ContainerRef]:
    """Return the container that has exactly the slots of each allocation, where only one can be meant.

    `uids` are the pods of this node by namespace and name: there are two of one name while the first terminates.
    """
    listed = list(allocations)
    same = Counter((each.resource, each.slots) for each in listed)
    found: dict[str, ContainerRef] = {}
    for each in listed:
        holders = [one for one in held if (one.resource, one.slots) == (each.resource, each.slots)]
        if len(holders) == 1 and same[each.resource, each.slots] == 1:
            pods = [*uids.get((holders[0].pod.namespace, holders[0].pod.name), ())]
            if len(pods) == 1:
                found[each.name] = container_of_uid(pods[0], holders[0].container)
    return found
