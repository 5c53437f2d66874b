"""The options by which a command says which share it wants."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from milligpu.model.units import Mib, Milli, parse_fraction, parse_size

_F = TypeVar("_F", bound=Callable[..., Any])


def _part(_ctx: click.Context, param: click.Parameter, value: str | None) -> Milli | None:
    return None if value is None else parse_fraction(str(param.opts[0]), value, zero=True)


def _limit(_ctx: click.Context, param: click.Parameter, value: str | None) -> Milli | None:
    return None if value is None else parse_fraction(str(param.opts[0]), value)


def _size(_ctx: click.Context, param: click.Parameter, value: str | None) -> Mib | None:
    return None if value is None else parse_size(str(param.opts[0]), value)


def share_options(function: _F) -> _F:
    """`-p`, `-m` and `--limit`, read into milli-GPU and MiB."""
    options = [
        click.option(
            "-p",
            "--part",
            "milli",
            metavar="FRACTION",
            callback=_part,
            help="Of a GPU's compute, such as 0.5. With 0 only what others leave, up to --limit.",
        ),
        click.option(
            "-m", "--memory", "mib", metavar="SIZE", callback=_size, help="Of a GPU's memory, such as 4Gi."
        ),
        click.option(
            "--limit", metavar="FRACTION", callback=_limit, help="Up to here while others leave compute unused."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function
