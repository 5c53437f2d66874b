"""NVML's numbered fields, read in one call: counters that have no function of their own."""

from collections.abc import Callable, Sequence
from typing import Any

from milligpu.nvml.library import Handle, Nvml
from milligpu.nvml.readings import ThrottleReason

RECOVERY_ACTION = 230
ENERGY = 83
PCIE_SENT, PCIE_RECEIVED = 197, 198
# Of all links together, in KiB.
_ALL_LINKS = 0xFFFFFFFF
LINKS_SENT, LINKS_RECEIVED = (138, _ALL_LINKS), (139, _ALL_LINKS)

_POWER_CAP, _POWER_BRAKE = 74, 271
_THERMAL_OLD, _THERMAL_SOFTWARE, _THERMAL_HARDWARE = 75, 269, 270
_SYNC, _RELIABILITY = 76, 79
THROTTLE_FIELDS = (
    *(_POWER_CAP, _POWER_BRAKE, _THERMAL_OLD, _THERMAL_SOFTWARE, _THERMAL_HARDWARE),
    *(_SYNC, _RELIABILITY),
)

Field = int | tuple[int, int]


def read_fields(ask: Callable[..., Any], nvml: Nvml, handle: Handle, fields: Sequence[Field]) -> dict[Field, int]:
    """Read numbered fields through `ask` of the library; fields that the driver does not have are missing."""
    values = ask("nvmlDeviceGetFieldValues", handle, list(fields)) or ()
    api = nvml.api
    found: dict[Field, int] = {}
    for field, value in zip(fields, values, strict=False):
        if value.nvmlReturn == api.NVML_SUCCESS:
            small = value.valueType == api.NVML_VALUE_TYPE_UNSIGNED_INT
            found[field] = value.value.uiVal if small else value.value.ullVal
    return found


def throttled_ns(found: dict[Field, int]) -> dict[ThrottleReason, int] | None:
    """Return the nanoseconds with reduced clocks by reason; None if the driver counts none of them."""
    if not found.keys() & set(THROTTLE_FIELDS):
        return None
    # The counters of software and hardware slowdown run at the same time; those of power do not.
    thermal = [found[field] for field in (_THERMAL_SOFTWARE, _THERMAL_HARDWARE, _THERMAL_OLD) if field in found]
    power = [found[field] for field in (_POWER_CAP, _POWER_BRAKE) if field in found]
    times = {
        ThrottleReason.POWER: sum(power) if power else None,
        ThrottleReason.THERMAL: max(thermal) if thermal else None,
        ThrottleReason.SYNC: found.get(_SYNC),
        ThrottleReason.RELIABILITY: found.get(_RELIABILITY),
    }
    return {reason: time for reason, time in times.items() if time is not None}
