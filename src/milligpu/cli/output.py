"""Printing results: a table for people, JSON and YAML for programs, names for pipes; always to stdout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class TableData:
    """A table ready to be shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class CommandRefused(click.ClickException):
    """The command makes no sense in the present state; exit code 2, as for bad input."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


_F = TypeVar("_F", bound=Callable[..., Any])


def format_option(*formats: OutputFormat) -> Callable[[_F], _F]:
    """Add `-o` with these formats; the first is the default."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice([str(each) for each in formats]),
        default=str(formats[0]),
        show_default=True,
        callback=_read_format,
        help="Output format.",
    )


def _read_format(_ctx: click.Context, _param: click.Parameter, value: str) -> OutputFormat:
    return OutputFormat(value)


def warn_renamed(old: str, new: str) -> None:
    """Say on stderr that a former spelling was used; it works for one release."""
    click.echo(f"warning: {old} is deprecated: use {new}", err=True)


def show_data(data: object, output: OutputFormat) -> None:
    """Print JSON or YAML."""
    if output is OutputFormat.YAML:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False), nl=False)
        return
    import json

    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    colors: Mapping[str, str] | None = None,
) -> None:
    """Print a table; columns in `right` are right-aligned, `colors` gives the style of cells by their text.

    On a terminal the table is colored and fits the width; in a pipe it is plain and no cell is cut.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(200, console.width), no_color=True)
    console.print(make_table(columns, rows, right=right, colors=colors, width=console.width))


_GAP = 2


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    colors: Mapping[str, str] | None = None,
    width: int | None = None,
) -> "Table":
    """Make the table that `show_table` prints, for a live display.

    If it is wider than `width`, headers and sentences break between words, so that names and numbers stay whole.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[column, *(row[at] for row in rows)] for at, column in enumerate(columns)]
    narrow = width is not None and _total([max(map(len, column)) for column in cells]) > width
    widths = _narrow(cells, width) if narrow and width is not None else [None] * len(cells)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, fixed in zip(columns, widths, strict=True):
        header = column.replace(" ", "\n") if narrow else column
        justify = "right" if column in right else "left"
        table.add_column(header, justify=justify, overflow="fold", width=fixed)
    for row in rows:
        table.add_row(*(Text(cell, (colors or {}).get(cell, "")) for cell in row))
    return table


def _narrow(cells: Sequence[Sequence[str]], width: int) -> Sequence[int | None]:
    """Widths with room for every word, and for as much of the sentences as fits; None if words are too long."""
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in cells]
    spare = width - _total(words)
    if spare < 0:
        return [None] * len(cells)
    widths: list[int | None] = []
    for column, least in zip(cells, words, strict=True):
        more = min(spare, max(map(len, column[1:]), default=0) - least)
        widths.append(least + max(0, more))
        spare -= max(0, more)
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)
