"""A `GpuQueue` as its author writes it."""

from collections.abc import Iterable
from typing import Any

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_queue import (
    MINIMUM_RUNTIME_MAX_S,
    NO_QUOTA,
    UNLIMITED,
    WEIGHT_MAX,
    GpuQueue,
    GpuQueues,
    parse_order,
    parse_quota,
    usable_queues,
)
from milligpu.model.names import GROUP_VERSION
from milligpu.model.units import parse_whole
from milligpu.wire.kubernetes import KubeGpuQueue

KIND = "GpuQueue"


class _Metadata(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    parent: str = ""
    guarantee: dict[str, int | str] | None = None
    ceiling: dict[str, int | str] | None = None
    weight: int = 1
    order: str = "fair"
    lend: bool = True
    minimumRuntimeSeconds: int = 0
    namespaces: tuple[str, ...] = ()


_spec_decoder = msgspec.json.Decoder(_Spec)


class _Queue(msgspec.Struct):
    apiVersion: str
    kind: str
    metadata: _Metadata
    spec: _Spec


def read_queue(where: str, document: dict[str, Any]) -> GpuQueue:
    """Read a queue, or refuse it with the field that is wrong; `where` says which document it is."""
    try:
        queue = msgspec.convert(document, _Queue)
    except msgspec.ValidationError as error:
        raise BadFormat(where, str(error)) from None
    if (queue.apiVersion, queue.kind) != (GROUP_VERSION, KIND):
        raise BadRequest(f"{where}: kind", f"{queue.apiVersion} {queue.kind}", f"{GROUP_VERSION} {KIND}")
    try:
        return _queue(queue.metadata.name, queue.spec)
    except BadRequest as error:
        raise error.inside(where) from None


def queue_of_object(found: KubeGpuQueue) -> GpuQueue:
    """Read a queue of the cluster. Raises `BadRequest` or `BadFormat` for one that admission would refuse."""
    try:
        spec = _spec_decoder.decode(found.spec)
    except msgspec.ValidationError as error:
        raise BadFormat("spec", str(error)) from None
    return _queue(found.metadata.name, spec)


def usages_of_object(found: KubeGpuQueue) -> dict[str, tuple[float, float]]:
    """What each user had of late, in milli-GPU, and the time when that was right."""
    return {each.name: (each.milli, each.at) for each in found.status.users or ()}


def _queue(name: str, spec: _Spec) -> GpuQueue:
    return GpuQueue(
        name,
        spec.parent,
        parse_quota("spec.guarantee", spec.guarantee, NO_QUOTA),
        parse_quota("spec.ceiling", spec.ceiling, UNLIMITED),
        parse_whole("spec.weight", spec.weight, 1, WEIGHT_MAX),
        parse_order("spec.order", spec.order),
        spec.lend,
        spec.namespaces,
        parse_whole("spec.minimumRuntimeSeconds", spec.minimumRuntimeSeconds, 0, MINIMUM_RUNTIME_MAX_S),
    )


def queues_of_objects(objects: Iterable[KubeGpuQueue]) -> tuple[GpuQueues, dict[str, str]]:
    """All queues of the cluster that can be used, and what is wrong with the others, by name."""
    found: list[GpuQueue] = []
    problems: dict[str, str] = {}
    for each in objects:
        try:
            found.append(queue_of_object(each))
        except (BadRequest, BadFormat) as error:
            problems[each.metadata.name] = error.message
    queues, contradictions = usable_queues(found)
    return queues, problems | contradictions
