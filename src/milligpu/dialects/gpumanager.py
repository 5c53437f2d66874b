"""Tencent's gpu-manager: hundredths of a card and blocks of 256 MiB; from 100 on, whole cards without limits."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_whole

PREFIX = "tencent.com/vcuda"
CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
"""An annotation: how far a share may stretch into idle time."""
RESOURCES = frozenset({CORE, MEMORY})

CARD = 100
BLOCK = Mib(256)
_MILLI = WHOLE // CARD


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect; its annotation alone asks for nothing."""
    return next((field for key, field in words.devices.items() if key.startswith(PREFIX)), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """A share with its memory, or whole cards."""
    limit = pods.optional(pods.annotations(pod), CORE_LIMIT, _parse_limit)

    def share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        for key, value in wants.items():
            if key.startswith(PREFIX) and key not in RESOURCES:
                raise BadRequest(pods.field(name, key), value, f"{CORE} or {MEMORY}")
        if not RESOURCES & wants.keys():
            return None
        cores = _cores(pods.field(name, CORE), wants.get(CORE))
        if cores >= CARD:
            return ShareRequest(cores // CARD, WHOLE)
        return _fraction(name, cores, wants.get(MEMORY), limit)

    return pods.request(pod, "gpu-manager", share)


def _cores(field: str, value: object) -> int:
    want = f"1 to 99, or a multiple of {CARD} (100 = one card)"
    try:
        cores = parse_whole(field, value, 1, GPUS_MAX * CARD)
    except BadRequest:
        raise BadRequest(field, value, want) from None
    if cores > CARD and cores % CARD:
        raise BadRequest(field, value, want)
    return cores


def _fraction(name: str, cores: int, memory: object, limit: Milli | None) -> ShareRequest:
    field = pods.field(name, MEMORY)
    if memory is None:
        raise BadRequest(field, None, f"blocks of {BLOCK} MiB beside less than {CARD} of {CORE}")
    mib = Mib(parse_whole(field, memory, 1, MIB_MAX // BLOCK) * BLOCK)
    milli = Milli(cores * _MILLI)
    if limit is not None and limit < milli:
        raise BadRequest(
            CORE_LIMIT, limit // _MILLI, f"{cores} to {CARD}, because container {name} asks for {cores}"
        )
    return ShareRequest(1, milli, mib, limit=limit or milli)


def _parse_limit(field: str, value: object) -> Milli:
    return Milli(parse_whole(field, value, 1, CARD) * _MILLI)
