"""The options that name a share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from milligpu.model.units import Mib, Milli, parse_fraction, parse_size_with_unit

_F = TypeVar("_F", bound=Callable[..., Any])


def _fraction_or_zero(_ctx: click.Context, param: click.Parameter, value: str | None) -> Milli | None:
    return None if value is None else parse_fraction(str(param.opts[0]), value, zero=True)


def _fraction(_ctx: click.Context, param: click.Parameter, value: str | None) -> Milli | None:
    return None if value is None else parse_fraction(str(param.opts[0]), value)


def _size(_ctx: click.Context, param: click.Parameter, value: str | None) -> Mib | None:
    return None if value is None else parse_size_with_unit(str(param.opts[0]), value)


def share_options(function: _F) -> _F:
    """Add `-p`, `-m` and `--limit`, parsed into milli-GPU and MiB."""
    options = [
        click.option(
            "-p",
            "--part",
            "milli",
            metavar="FRACTION",
            callback=_fraction_or_zero,
            help="Fraction of each GPU's compute to guarantee, from 0 to 1. With 0, only idle compute is used, "
            "up to --limit.",
        ),
        click.option(
            "-m",
            "--memory",
            "mib",
            metavar="SIZE",
            callback=_size,
            help="Memory of each GPU to guarantee, such as 4Gi; also the most that can be allocated.",
        ),
        click.option(
            "--limit",
            metavar="FRACTION",
            callback=_fraction,
            help="Largest fraction of each GPU's compute to use while others leave it idle; not below -p.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function
