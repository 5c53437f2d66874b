"""Kubernetes' time stamps as seconds since 1970, without a clock."""

import re
from calendar import timegm

_STAMP = re.compile(r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})(\.\d+)?Z")
_DAY_S, _HOUR_S, _MINUTE_S = 86400, 3600, 60


def parse_timestamp(text: str) -> float:
    """Read `2026-11-18T07:30:00Z`, as the API server writes it; 0 for anything else."""
    found = _STAMP.fullmatch(text)
    if found is None:
        return 0.0
    parts = tuple(int(part) for part in found.groups()[:6])
    return timegm((*parts, 0, 0, 0)) + float(found[7] or 0.0)


def show_time_of_day(seconds: float) -> str:
    """Show a time as `14:20 UTC`."""
    rest = int(seconds) % _DAY_S
    return f"{rest // _HOUR_S:02}:{rest % _HOUR_S // _MINUTE_S:02} UTC"
