"""Tencent's gpu-manager: hundredths of a GPU and blocks of 256 MiB; from 100 on, whole GPUs without limits."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_whole

PREFIX = "tencent.com/vcuda"
CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
"""An annotation: the limit, in hundredths of a GPU."""
RESOURCES = frozenset({CORE, MEMORY})

HUNDRED = 100
BLOCK = Mib(256)
_MILLI = WHOLE // HUNDRED


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect; the annotation alone is no request."""
    return next((field for key, field in fields.devices.items() if key.startswith(PREFIX)), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read each container's share with its memory, or its whole GPUs."""
    limit = pods.optional(pods.annotations(pod), CORE_LIMIT, _parse_limit)

    def share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
        for key, value in devices.items():
            if key.startswith(PREFIX) and key not in RESOURCES:
                raise BadRequest(pods.limit_field(name, key), value, f"written as {CORE} or {MEMORY}")
        if not RESOURCES & devices.keys():
            return None
        cores = _cores(pods.limit_field(name, CORE), devices.get(CORE))
        if cores >= HUNDRED:
            return ShareRequest(cores // HUNDRED, WHOLE)
        return _fraction(name, cores, devices.get(MEMORY), limit)

    return pods.make_request(pod, "gpu-manager", share)


def _cores(field: str, value: object) -> int:
    want = f"from 1 to 99, or a multiple of {HUNDRED} (100 = one GPU)"
    try:
        cores = parse_whole(field, value, 1, GPUS_MAX * HUNDRED)
    except BadRequest:
        raise BadRequest(field, value, want) from None
    if cores > HUNDRED and cores % HUNDRED:
        raise BadRequest(field, value, want)
    return cores


def _fraction(name: str, cores: int, memory: object, limit: Milli | None) -> ShareRequest:
    field = pods.limit_field(name, MEMORY)
    if memory is None:
        raise BadRequest(field, None, f"a number of blocks of {BLOCK} MiB, where {CORE} is below {HUNDRED}")
    mib = Mib(parse_whole(field, memory, 1, MIB_MAX // BLOCK) * BLOCK)
    milli = Milli(cores * _MILLI)
    if limit is not None and limit < milli:
        raise BadRequest(
            CORE_LIMIT, limit // _MILLI, f"from {cores} to {HUNDRED}, because container {name} asks for {cores}"
        )
    return ShareRequest(1, milli, mib, limit=limit or milli)


def _parse_limit(field: str, value: object) -> Milli:
    return Milli(parse_whole(field, value, 1, HUNDRED) * _MILLI)


DIALECT = Dialect(
    "gpu-manager",
    first_field,
    read_request,
    source="[Tencent's gpu-manager](https://github.com/tkestack/gpu-manager) 1",
    forms=(
        DialectForm(
            "`tencent.com/vcuda-core`, `vcuda-memory`, annotation `vcuda-core-limit`",
            f"Hundredths of a GPU, blocks of {BLOCK} MiB, and a limit (default: the share). From {HUNDRED} on: "
            "whole GPUs.",
        ),
    ),
    resources=RESOURCES,
    resource_patterns=(r"tencent\.com/vcuda",),
)
