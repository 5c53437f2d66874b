"""Nodes with GPUs that only the control plane believes in, and what the grants in a cluster add up to."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

from lightkube.resources.core_v1 import Event, Pod

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.kwok import KwokNodes
from devcluster.platform import SchedulerService
from devcluster.pods import pod
from milligpu.manifests.kube_scheduler import in_default_scheduler
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant
from milligpu.model.reasons import EventReason
from milligpu.model.units import Mib
from milligpu.wire.driver import encode_driver
from milligpu.wire.grant import decode_grant
from milligpu.wire.inventory import encode_inventory

CARD_MIB = Mib(16384)


def gpu_nodes(
    add: Callable[..., KwokNodes],
    count: int,
    cards: int = 2,
    *,
    options: Mapping[str, Any] | None = None,
    **card: Any,
) -> KwokNodes:
    """KWOK nodes, each with cards of its own; the kubelet's count of milli-GPU is there, too."""
    resources = {names.VGPU: str(cards * 1000), names.WHOLE_GPU: str(cards)}

    def annotations(node: str) -> dict[str, str]:
        gpus = cards_of(node, cards, **card)
        driver = encode_driver(gpus)
        return {names.INVENTORY: encode_inventory(gpus), **({names.DRIVER: driver} if driver else {})}

    return add(count, resources=resources, each=annotations, **(options or {}))


def cards_of(
    node: str, cards: int, model: str = "Tesla V100-SXM2-16GB", mib: int = CARD_MIB, **card: Any
) -> list[Gpu]:
    return [Gpu(f"GPU-{node}-{at}", model, Mib(mib), **card) for at in range(cards)]


def inventory(node: str, cards: int, **card: Any) -> str:
    return encode_inventory(cards_of(node, cards, **card))


def share_pod(name: str, milli: int, nodes: KwokNodes | None = None, *, mib: int | None = None, **spec: Any) -> Pod:
    resources = {names.VGPU: str(milli)} | ({names.VGPU_MEMORY: str(mib)} if mib else {})
    if nodes is not None:
        spec = {"nodeSelector": dict(nodes.selector), "tolerations": list(nodes.tolerations), **spec}
    return pod(name, resources=resources, **spec)


def grant_of(found: Pod) -> Grant | None:
    notes: Mapping[str, str] = cast(Any, found.metadata).annotations or {}
    text = notes.get(names.GRANT)
    return None if text is None else decode_grant(text)


def grants(cluster: Cluster, namespace: str | None) -> dict[str, Grant]:
    """The grants of all pods that have not ended, by pod name."""
    found: dict[str, Grant] = {}
    for each in list_in(cluster.client, Pod, namespace):
        grant = grant_of(each)
        ended = each.status is not None and each.status.phase in {"Succeeded", "Failed"}
        if grant is not None and not ended:
            assert each.metadata is not None
            assert each.metadata.name is not None
            assert each.spec is not None
            assert (grant.uid, grant.node) == (each.metadata.uid, each.spec.nodeName)
            found[each.metadata.name] = grant
    return found


def overcommitted(given: Mapping[str, Grant] | Sequence[Grant], mib: int = CARD_MIB) -> list[str]:
    """Cards of which more was granted than there is; pods here have one container each."""
    milli: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for grant in given.values() if isinstance(given, Mapping) else given:
        for shares in grant.containers.values():
            for held in shares:
                milli[held.gpu] += 1000 if held.share.whole else held.share.milli
                memory[held.gpu] += mib if held.share.whole else held.share.mib
    return sorted({gpu for gpu in milli if milli[gpu] > 1000 or memory[gpu] > mib})


@contextmanager
def default_scheduler(service: SchedulerService) -> Generator[None]:
    """Let the cluster's default scheduler ask this service."""
    plane = service.cluster.control_plane
    plane.stop_scheduler(DEFAULT_SCHEDULER)
    plane.start_scheduler(in_default_scheduler(service.url))
    yield
    plane.stop_scheduler(DEFAULT_SCHEDULER)
    plane.start_scheduler()


def _happened(event: Event) -> datetime:
    when = event.eventTime or (event.metadata and event.metadata.creationTimestamp)
    assert when is not None
    return when


def told(cluster: Cluster, namespace: str, name: str, reason: str = EventReason.GPU_UNAVAILABLE) -> str:
    """The last event with this reason about a pod."""
    notes = all_told(cluster, namespace, name, reason)
    return notes[-1] if notes else ""


def all_told(cluster: Cluster, namespace: str, name: str, reason: str) -> list[str]:
    """All events with this reason about a pod, the last one last."""
    events = [
        event
        for event in list_in(cluster.client, Event, namespace)
        if event.reason == reason and event.involvedObject.name == name
    ]
    # The API server lists them by name, and a part of that is random.
    return [event.message or "" for event in sorted(events, key=_happened)]
