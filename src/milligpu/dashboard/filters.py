"""How templates write numbers; unknown is a dash, never 0."""

import time
from collections.abc import Callable
from typing import Any

UNKNOWN = "\N{EN DASH}"


def cards(value: float | None) -> str:
    """An amount of GPUs."""
    return UNKNOWN if value is None else f"{value:,.2f}"


def percent(value: float | None) -> str:
    """A fraction."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def watts(value: float | None) -> str:
    """Power."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} W" if value < 10_000 else f"{value / 1000:.1f} kW"


def money(value: float | None) -> str:
    """An amount of money, without its currency."""
    return "unknown" if value is None else f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def hours(value: float | None) -> str:
    """GPU hours."""
    return (
        UNKNOWN if value is None else f"{value:,.1f} h" if value >= 0.1 or value == 0 else f"{value * 60:.1f} min"
    )


def clock(value: float | None) -> str:
    """A time of day, with the date."""
    return UNKNOWN if not value else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))


def model(value: str) -> str:
    """A GPU's model without its brand."""
    for brand in ("NVIDIA ", "Tesla "):
        value = value.removeprefix(brand)
    return value


FILTERS: dict[str, Callable[..., Any]] = {
    "cards": cards,
    "percent": percent,
    "size": size,
    "watts": watts,
    "money": money,
    "hours": hours,
    "clock": clock,
    "model": model,
}
