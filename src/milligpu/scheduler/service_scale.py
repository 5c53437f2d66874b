"""The number of pods of services' targets: reads and writes `/scale`, and which pods go first."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from milligpu.kube.api import JSON_PATCH, MERGE_PATCH, METADATA_ONLY, ApiClient, ApiRefused
from milligpu.model.gpu_service import GpuService, ScaleTarget
from milligpu.scheduler.service_pods import DELETION_COST, WatchedPod
from milligpu.wire.scale import Scale, ScaleSelector, decode_autoscalers, parse_selector

_GONE = 404
_LATER = frozenset({404, 409, 422})
_COST = "-100"
"""The deletion cost of pods that go first; by it the service knows its own annotation from a user's."""


@dataclass(frozen=True, slots=True)
class TargetScale:
    """What `/scale` of a target says."""

    replicas: int
    selector: ScaleSelector


def _path(service: GpuService) -> str:
    target = service.target
    return f"/apis/apps/v1/namespaces/{service.namespace}/{target.kind.plural}/{target.name}/scale"


async def read_scale(api: ApiClient, service: GpuService) -> TargetScale | None:
    """Return the scale of a service's target; None if there is no such target."""
    try:
        found = msgspec.json.decode(await api.get(_path(service)), type=Scale)
    except ApiRefused as error:
        if error.status == _GONE:
            return None
        raise
    return TargetScale(found.spec.replicas, parse_selector(found.status.selector))


async def write_scale(api: ApiClient, service: GpuService, before: int, replicas: int) -> bool:
    """Change the number of pods; False if somebody else did meanwhile."""
    where = "/spec/replicas"
    patch = [
        {"op": "test", "path": where, "value": before},
        {"op": "replace", "path": where, "value": replicas},
    ]
    try:
        await api.send("PATCH", _path(service), patch, kind=JSON_PATCH)
    except ApiRefused as error:
        if error.status not in _LATER:
            raise
        return False
    return True


async def read_autoscalers(api: ApiClient) -> Mapping[tuple[str, ScaleTarget], str]:
    """Return the HorizontalPodAutoscalers of the cluster by namespace and target."""
    return decode_autoscalers(await api.get("/apis/autoscaling/v2/horizontalpodautoscalers"))


async def mark_first_to_go(api: ApiClient, pods: Collection[WatchedPod], first: Collection[str]) -> bool:
    """Write which pods a ReplicaSet should delete first; False until the watch shows it.

    A deletion cost that somebody else wrote stays.
    """
    marked = True
    for each in pods:
        meta = each.object.metadata
        present = (meta.annotations or {}).get(DELETION_COST)
        wanted = _COST if each.uid in first else None
        if present == wanted or present not in {_COST, None}:
            continue
        marked = False
        patch = {"metadata": {"uid": meta.uid, "annotations": {DELETION_COST: wanted}}}
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        try:
            await api.send("PATCH", path, patch, kind=MERGE_PATCH, accept=METADATA_ONLY)
        except ApiRefused as error:
            if error.status not in _LATER:
                raise
    return marked
