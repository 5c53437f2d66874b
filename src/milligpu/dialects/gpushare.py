"""Aliyun's gpushare: `aliyun.com/gpu-mem` of one GPU. gpushare limits nothing; here the memory is limited."""

from collections.abc import Mapping
from enum import StrEnum

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSetting, DialectSettings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import MIB_MAX, WHOLE, Mib, parse_whole

PREFIX = "aliyun.com/gpu"
MEMORY = "aliyun.com/gpu-mem"
RESOURCES = frozenset({MEMORY})

# No GPU has more memory than 512 GiB, and no program needs less than 512 MiB: the number itself shows the unit.
GIB_MAX = 512


class GpushareUnit(StrEnum):
    """The unit of `aliyun.com/gpu-mem`, which is a flag of gpushare's device plugin."""

    AUTO = "auto"
    GIB = "GiB"
    MIB = "MiB"


UNIT = DialectSetting(
    "gpushare-unit",
    GpushareUnit.AUTO,
    tuple(GpushareUnit),
    f"Unit of {MEMORY}; auto reads values up to {GIB_MAX} as GiB, larger ones as MiB.",
)


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect."""
    return next((field for key, field in fields.devices.items() if key.startswith(PREFIX)), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:
    """Read each container's memory of one GPU; compute follows from it, and the limit is the whole GPU."""

    def share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
        for key, value in devices.items():
            if key.startswith(PREFIX) and key != MEMORY:
                raise BadRequest(pods.limit_field(name, key), value, f"written as {MEMORY}: a pod gets one GPU")
        amount = parse_whole(pods.limit_field(name, MEMORY), devices.get(MEMORY, 0), 0, MIB_MAX)
        if amount == 0:
            return None
        return ShareRequest(mib=_mib(pods.limit_field(name, MEMORY), amount, UNIT.of(settings)), limit=WHOLE)

    return pods.make_request(pod, "gpushare", share)


def _mib(field: str, amount: int, unit: GpushareUnit) -> Mib:
    gib = unit is GpushareUnit.GIB or (unit is GpushareUnit.AUTO and amount <= GIB_MAX)
    mib = amount * 1024 if gib else amount
    if mib > MIB_MAX:
        raise BadRequest(field, amount, f"at most {MIB_MAX // 1024} GiB")
    return Mib(mib)


DIALECT = Dialect(
    "gpushare",
    first_field,
    read_request,
    source="[Aliyun's gpushare](https://github.com/AliyunContainerService/gpushare-scheduler-extender)",
    forms=(
        DialectForm(
            f"`{MEMORY}`",
            "Memory of one GPU, in `--gpushare-unit`. Compute follows from it and has no limit.",
        ),
    ),
    resources=RESOURCES,
    resource_patterns=(r"aliyun\.com/gpu",),
    settings=(UNIT,),
)
