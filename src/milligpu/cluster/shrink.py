"""Pods that may be shrunk for others: down to the floor that they name, in compute, and up to their share again.

What a pod has to have again follows from its request and its resize annotation, so nothing about it is stored.
"""

from collections.abc import Mapping

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.dialects.resize import ShareChange, resized_grant
from milligpu.model.grant import Grant
from milligpu.model.units import Milli


def is_shrinkable(entry: PodEntry) -> bool:
    """Whether a bound pod may have less compute than it has now."""
    request = entry.spec.request
    return (
        entry.stage is PodStage.BOUND
        and not entry.leaving
        and entry.grant is not None
        and entry.next_grant is None
        and request is not None
        and request.floor is not None
        and largest_share(entry.grant) > request.floor
    )


def largest_share(grant: Grant) -> Milli:
    """The compute of a pod's largest share."""
    return max((each.share.milli for shares in grant.containers.values() for each in shares), default=Milli(0))


def shrunk_grant(grant: Grant, most: Milli) -> Grant:
    """Return the grant's next generation, in which no share has more compute than this."""
    changes = {
        name: ShareChange(milli=most)
        for name, shares in grant.containers.items()
        if any(each.share.milli > most for each in shares)
    }
    return resized_grant(grant, changes)


def full_shares(state: ClusterState, entry: PodEntry) -> Mapping[str, ShareChange]:
    """What a shrunk pod has to have again: for each of its shares the compute that it was created with.

    A service decides itself about the shares of its pods.
    """
    request, node = entry.spec.request, state.placer.snapshot.nodes.get(entry.node)
    if request is None or request.floor is None or entry.grant is None or node is None or entry.service:
        return {}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    found: dict[str, ShareChange] = {}
    for container in request.containers:
        for held in entry.grant.containers.get(container.name, ()):
            if container.share is not None and held.gpu in gpus:
                found[container.name] = ShareChange(milli=container.share.resolve(gpus[held.gpu]).milli)
    return found


def at_floor(entry: PodEntry) -> Grant:
    """The grant of a shrinkable pod that has been shrunk as far as it may be."""
    assert entry.grant is not None
    assert entry.spec.floor is not None
    return shrunk_grant(entry.grant, entry.spec.floor)
