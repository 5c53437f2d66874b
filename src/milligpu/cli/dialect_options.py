"""Options for the settings of dialects, made from the dialects' own descriptions."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.registry import DialectRegistry
from milligpu.dialects.settings import DialectSetting, DialectSettings

R = TypeVar("R")


def dialect_options(known: DialectRegistry = KNOWN) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command one option per setting; it gets all of them as the argument `settings`."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def wrapper(**arguments: Any) -> R:
            values = {setting.name: arguments.pop(_argument(setting)) for setting in known.settings}
            return command(settings=DialectSettings(values), **arguments)

        decorated: Callable[..., R] = wrapper
        for setting in reversed(known.settings):
            decorated = _option(setting)(decorated)
        return decorated

    return decorate


def _option(setting: DialectSetting[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    numbers = setting.allowed if isinstance(setting.allowed, range) else None
    return click.option(
        f"--{setting.name}",
        _argument(setting),
        type=click.IntRange(numbers[0], numbers[-1]) if numbers else click.Choice([*map(str, setting.allowed)]),
        metavar="COUNT" if numbers else None,
        default=setting.default if numbers else str(setting.default),
        show_default=True,
        help=setting.help,
    )


def _argument(setting: DialectSetting[Any]) -> str:
    return setting.name.replace("-", "_")
