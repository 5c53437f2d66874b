"""Pods of services: what the watch shows of them, what they hold, and their grants with another share."""

from dataclasses import dataclass

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.dialects.resize import ShareChange, resized_grant
from milligpu.model.gpu import Gpu
from milligpu.model.grant import Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.timestamps import parse_timestamp
from milligpu.model.units import Milli
from milligpu.services.updates import ServicePod
from milligpu.wire.kubernetes import KubePod

VERSION_LABELS = ("pod-template-hash", "controller-revision-hash")
"""What ReplicaSets of Deployments and StatefulSets write on pods of one template."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own annotation: a ReplicaSet deletes pods with the lowest one first."""


@dataclass(frozen=True, slots=True)
class WatchedPod:
    """A pod as the watch showed it last."""

    object: KubePod
    version: str
    ready: bool
    ended: bool
    created: float
    """In seconds since 1970."""
    start_s: float | None
    """From its creation until it was Ready."""

    @property
    def uid(self) -> str:
        return self.object.metadata.uid

    @property
    def leaving(self) -> bool:
        return self.object.metadata.deletionTimestamp is not None

    @property
    def labels(self) -> dict[str, str]:
        return self.object.metadata.labels or {}


def watched_pod(found: KubePod) -> WatchedPod:
    """Read a pod of the watch."""
    labels = found.metadata.labels or {}
    version = next((labels[key] for key in VERSION_LABELS if key in labels), "")
    ready = next((each for each in found.status.conditions or () if each.type == "Ready"), None)
    is_ready = ready is not None and ready.status == "True"
    created = parse_timestamp(found.metadata.creationTimestamp)
    start_s = None
    if is_ready and ready is not None:
        start_s = max(0.0, parse_timestamp(ready.lastTransitionTime or "") - created)
    return WatchedPod(found, version, is_ready, found.ended, created, start_s)


def service_pod(state: ClusterState, entry: PodEntry, watched: WatchedPod) -> ServicePod | None:
    """Return what the decisions read of a pod; None if it is not bound, or what it holds is not known."""
    share, gpus = _template(state, entry), _gpus(state, entry)
    if entry.stage is not PodStage.BOUND or entry.grant is None or not gpus:
        return None
    held = [each.share for shares in entry.grant.containers.values() for each in shares]
    whole = any(each.whole for each in held)
    return ServicePod(
        entry.spec.pod.uid,
        watched.version,
        entry.number,
        watched.ready and not watched.leaving,
        watched.leaving,
        tuple((entry.node, gpu.uuid) for gpu in gpus),
        gpus[0].milli if whole else held[0].milli,
        held[0].milli if share is None else share.milli,
        resizable=share is not None and not whole and not entry.resize and entry.next_grant is None,
        borrows=not entry.spec.queue,
        fixed=any(gpu.policy is SharePolicy.FIXED for gpu in gpus),
    )


def _gpus(state: ClusterState, entry: PodEntry) -> list[Gpu]:
    node = state.placer.snapshot.nodes.get(entry.node)
    if node is None or entry.grant is None:
        return []
    return [gpu for gpu in node.gpus if gpu.uuid in entry.grant.gpus]


def _template(state: ClusterState, entry: PodEntry) -> Share | None:
    """Return the share with which the pod was created; None unless exactly one of its containers has one."""
    gpus, request = _gpus(state, entry), entry.spec.request
    if not gpus or request is None or entry.grant is None or len(entry.grant.containers) != 1:
        return None
    [name] = entry.grant.containers
    asked = next((each.share for each in request.containers if each.name == name), None)
    return None if asked is None or asked.whole else asked.resolve(gpus[0], request.policy)


def grant_of(entry: PodEntry, milli: int, limit: int) -> Grant:
    """Return the pod's grant with another guarantee and limit."""
    assert entry.grant is not None
    change = ShareChange(milli=Milli(milli), limit=Milli(max(limit, milli, 1)))
    return resized_grant(entry.grant, dict.fromkeys(entry.grant.containers, change))


def template_grant(state: ClusterState, entry: PodEntry) -> Grant | None:
    """Return the pod's grant as it was before a service changed it; None if that is not known now."""
    share = _template(state, entry)
    return None if share is None else grant_of(entry, share.milli, share.limit)
