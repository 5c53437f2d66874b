"""The condition of a class: written when it changes, and only then."""

from datetime import UTC, datetime

import msgspec

from milligpu.model.gpu_class import ClassCondition
from milligpu.model.reasons import ClassReason
from milligpu.scheduler.classes import condition_patch
from milligpu.wire.kubernetes import GpuClassSpec, GpuClassStatus, KubeGpuClass, ObjectMeta

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 12, tzinfo=UTC)
USABLE = ClassCondition(ClassReason.USABLE)


def gpu_class(generation: int = 1, status: GpuClassStatus | None = None) -> KubeGpuClass:
    meta = ObjectMeta(name="gold", uid="u", generation=generation)
    return KubeGpuClass(meta, GpuClassSpec("ecc"), status or GpuClassStatus())


def written(found: KubeGpuClass, wanted: ClassCondition, now: datetime) -> GpuClassStatus | None:
    patch = condition_patch(found, wanted, now)
    if patch is None:
        return None
    assert patch["metadata"] == {"uid": "u"}
    return msgspec.json.decode(msgspec.json.encode(patch["status"]), type=GpuClassStatus)


def test_a_condition_is_written_once_and_keeps_its_time_while_its_status_stays() -> None:
    status = written(gpu_class(), USABLE, NOW)
    assert status is not None
    assert status.conditions is not None
    assert (status.conditions[0].status, status.conditions[0].lastTransitionTime) == (
        "True",
        "2026-01-01T12:00:00Z",
    )
    assert written(gpu_class(1, status), USABLE, LATER) is None
    newer = written(gpu_class(2, status), USABLE, LATER)
    assert newer is not None
    assert newer.conditions is not None
    assert newer.conditions[0].observedGeneration == 2
    assert newer.conditions[0].lastTransitionTime == "2026-01-01T12:00:00Z"
    broken = written(gpu_class(2, newer), ClassCondition(ClassReason.FALLBACK_GONE, "m"), LATER)
    assert broken is not None
    assert broken.conditions is not None
    assert (broken.conditions[0].status, broken.conditions[0].lastTransitionTime) == (
        "False",
        "2026-01-02T12:00:00Z",
    )
