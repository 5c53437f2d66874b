"""Find out in which dialect a pod is written, and read it; a pod in two dialects is refused with both fields."""

from milligpu.dialects import (
    attach,
    bitfusion,
    deepomatic,
    gpumanager,
    gpushare,
    hami,
    kai,
    kubeshare,
    native,
    nvidia,
    profiles,
    qos,
)
from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect
from milligpu.dialects.floor import apply_floor
from milligpu.dialects.groups import apply_group
from milligpu.dialects.registry import DialectRegistry
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest

KNOWN = DialectRegistry(
    (
        native.DIALECT,
        nvidia.DIALECT,
        hami.DIALECT,
        kubeshare.DIALECT_V1,
        kubeshare.DIALECT_V2,
        gpumanager.DIALECT,
        gpushare.DIALECT,
        deepomatic.DIALECT,
        bitfusion.DIALECT,
        kai.DIALECT,
    )
)

_NVIDIA_OTHERS = ("nvidia.com/gpu", "nvidia.com/vgpu")
_AFTER_ADMISSION = frozenset({names.VGPU, names.VGPU_MEMORY, names.WHOLE_GPU})


def read_pod(pod: pods.Json, settings: DialectSettings = DEFAULTS, known: DialectRegistry = KNOWN) -> PodRequest:
    """Return what a pod requests, in whichever dialect. Raises `BadRequest` for a request that is invalid."""
    pods.refuse_elsewhere(pod)
    fields = pods.pod_fields(pod)
    _refuse_misspelled(fields, known)
    request = _find(fields, known).read_request(pod, settings)
    request = qos.apply_qos_limits(pod, request, settings)
    request = attach.apply_attach(pod, profiles.require_profile(pod, request))
    return apply_group(pod, apply_floor(pod, request))


def _find(fields: pods.PodFields, known: DialectRegistry) -> Dialect:
    if names.DIALECT in fields.annotations:
        _refuse_unread(fields, known)
        return native.DIALECT  # admission has converted the pod; annotations and labels of its dialect may remain
    found = {dialect: field for dialect in known.dialects if (field := dialect.first_field(fields))}
    shared = tuple(f"[{name}]" for dialect in found for name in dialect.also_reads)
    own = {dialect: field for dialect, field in found.items() if not field.endswith(shared)} if shared else found
    if len(own) > 1:
        (_, first), (second, field) = list(own.items())[:2]
        want = f"in the dialect of {first}: a pod has one dialect"
        raise BadRequest(field, f"{second.name} request", want)
    return next(iter(own), native.DIALECT)


def _refuse_unread(fields: pods.PodFields, known: DialectRegistry) -> None:
    """Refuse other systems' resources next to admission's mark: admission would have replaced them."""
    for key, field in fields.devices.items():
        if key in known.resources - _AFTER_ADMISSION:
            hint = f"remove the annotation {names.DIALECT}, which only admission writes"
            raise BadRequest(field, key, f"{names.VGPU} where {names.DIALECT} is set", hint=hint)


def _refuse_misspelled(fields: pods.PodFields, known: DialectRegistry) -> None:
    """Refuse `nvidia.com/gpu-mem`, which no system has, instead of reading it as no request."""
    for key, field in fields.devices.items():
        if key.startswith(_NVIDIA_OTHERS) and key not in known.resources:
            allowed = sorted(name for name in known.resources if name.startswith("nvidia.com/"))
            raise BadRequest(field, key, f"one of {', '.join(allowed)}")
