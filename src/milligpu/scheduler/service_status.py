"""`status` of `GpuService` objects: conditions, numbers and the last decisions."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from milligpu.kube.api import JSON_PATCH, ApiClient, ApiRefused
from milligpu.model import names
from milligpu.model.reasons import ServiceReason
from milligpu.wire.gpu_service import GpuServiceStatus, ServiceDecisionStatus
from milligpu.wire.kubernetes import KubeCondition, RawObject

READY, FRESH, SCALED, UPDATED = "Ready", "MetricsFresh", "Scaled", "Updated"
DECISIONS_MAX = 20
_LATER = frozenset({404, 409, 422})
_GOOD = frozenset(
    {
        ServiceReason.FOLLOWING,
        ServiceReason.PAUSED,
        ServiceReason.FRESH,
        ServiceReason.AS_NEEDED,
        ServiceReason.UP_TO_DATE,
    }
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServiceCondition:
    """One condition of a service."""

    type: str
    reason: ServiceReason
    message: str = ""

    @property
    def status(self) -> str:
        return "Unknown" if self.reason is ServiceReason.COLLECTING else str(self.reason in _GOOD)


def conditions_of(
    known: Iterable[KubeCondition], wanted: Iterable[ServiceCondition], generation: int, now: datetime
) -> tuple[KubeCondition, ...]:
    """Return the conditions as the object should have them; a time changes only with its status."""
    before = {each.type: each for each in known}
    found: list[KubeCondition] = []
    for each in wanted:
        old = before.get(each.type)
        kept = old is not None and old.status == each.status
        since = old.lastTransitionTime if old is not None and kept else f"{now:%Y-%m-%dT%H:%M:%SZ}"
        found.append(KubeCondition(each.type, each.status, each.reason, each.message, since, generation))
    return tuple(found)


def with_decisions(status: GpuServiceStatus, messages: Iterable[str], now: datetime) -> GpuServiceStatus:
    """Add decisions to a status."""
    added = [ServiceDecisionStatus(f"{now:%Y-%m-%dT%H:%M:%SZ}", each) for each in messages]
    return msgspec.structs.replace(status, decisions=(*reversed(added), *status.decisions)[:DECISIONS_MAX])


def differs_in_words(one: GpuServiceStatus, other: GpuServiceStatus) -> bool:
    """Whether more than numbers differ, which change all the time."""

    def words(status: GpuServiceStatus) -> object:
        conditions = [(each.type, each.status, each.reason, each.observedGeneration) for each in status.conditions]
        return status.share, status.granted, status.replicas, status.ready, status.decisions, conditions

    return words(one) != words(other)


async def write_status(api: ApiClient, found: RawObject, wanted: GpuServiceStatus) -> RawObject | None:
    """Write the status, and return the object with it; None if it is another object by now."""
    meta = found.metadata
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": meta.resourceVersion},
        {"op": "add", "path": "/status", "value": wanted},
    ]
    path = f"{names.service_path(meta.namespace, meta.name)}/status"
    try:
        answer = await api.send("PATCH", path, patch, kind=JSON_PATCH)
    except ApiRefused as error:
        if error.status not in _LATER:
            raise
        log.info("Service was changed meanwhile", service=f"{meta.namespace}/{meta.name}", error=error.message)
        return None
    return msgspec.json.decode(answer, type=RawObject)
