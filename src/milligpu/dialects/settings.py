"""What some dialects leave to the configuration of the system they come from."""

from dataclasses import dataclass
from enum import StrEnum


class GpushareUnit(StrEnum):
    """In what `aliyun.com/gpu-mem` counts: a flag of its device plugin."""

    AUTO = "auto"
    """GiB, unless no card could have so many."""
    GIB = "GiB"
    MIB = "MiB"


@dataclass(frozen=True, slots=True)
class Settings:
    """The admin's answers; the defaults are those systems' own where they have one."""

    gpushare_unit: GpushareUnit = GpushareUnit.AUTO
    parts: int = 10
    """Into how many equal shares a card is cut for `deepomatic.com/shared-gpu` and `nvidia.com/gpu.shared`."""


DEFAULTS = Settings()
