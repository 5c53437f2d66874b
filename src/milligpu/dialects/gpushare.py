"""Aliyun's gpushare: `aliyun.com/gpu-mem` of one card. Nothing is limited there; here the memory is."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, GpushareUnit, Settings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import MIB_MAX, WHOLE, Mib, parse_whole

PREFIX = "aliyun.com/gpu"
MEMORY = "aliyun.com/gpu-mem"
RESOURCES = frozenset({MEMORY})

# No card has more memory than 512 GiB, and nobody asks for less than half a GiB: between the two lies the unit.
GIB_MAX = 512


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect."""
    return next((field for key, field in words.devices.items() if key.startswith(PREFIX)), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:
    """Memory of one card, and its part of the compute, with the card as ceiling."""

    def share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        for key, value in wants.items():
            if key.startswith(PREFIX) and key != MEMORY:
                raise BadRequest(pods.field(name, key), value, f"{MEMORY} only: a pod gets one card")
        amount = parse_whole(pods.field(name, MEMORY), wants.get(MEMORY, 0), 0, MIB_MAX)
        if amount == 0:
            return None
        return ShareRequest(mib=_mib(pods.field(name, MEMORY), amount, settings.gpushare_unit), limit=WHOLE)

    return pods.request(pod, "gpushare", share)


def _mib(field: str, amount: int, unit: GpushareUnit) -> Mib:
    gib = unit is GpushareUnit.GIB or (unit is GpushareUnit.AUTO and amount <= GIB_MAX)
    mib = amount * 1024 if gib else amount
    if mib > MIB_MAX:
        raise BadRequest(field, amount, f"at most {MIB_MAX // 1024} GiB")
    return Mib(mib)
