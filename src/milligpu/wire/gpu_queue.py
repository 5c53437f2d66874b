"""A `GpuQueue` as its author writes it."""

from typing import Any

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_queue import NO_QUOTA, UNLIMITED, WEIGHT_MAX, GpuQueue, parse_order, parse_quota
from milligpu.model.names import GROUP_VERSION
from milligpu.model.units import parse_whole

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
    spec = queue.spec
    try:
        return GpuQueue(
            queue.metadata.name,
            spec.parent,
            parse_quota("spec.guarantee", spec.guarantee, NO_QUOTA),
            parse_quota("spec.ceiling", spec.ceiling, UNLIMITED),
            parse_whole("spec.weight", spec.weight, 1, WEIGHT_MAX),
            parse_order("spec.order", spec.order),
            spec.lend,
        )
    except BadRequest as error:
        raise error.inside(where) from None
