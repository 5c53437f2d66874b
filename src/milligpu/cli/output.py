"""How results are shown: a table for people, JSON and YAML for programs, names for pipes. Data goes to stdout."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.table import Table


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


_F = TypeVar("_F", bound=Callable[..., Any])


def format_option(*formats: Format) -> Callable[[_F], _F]:
    """The `-o` of a command that offers these formats, the first by default."""
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice([str(each) for each in formats]),
        default=str(formats[0]),
        show_default=True,
        callback=_read_format,
        help="How to show the result.",
    )


def _read_format(_ctx: click.Context, _param: click.Parameter, value: str) -> Format:
    return Format(value)


def show_data(data: object, output: Format) -> None:
    """Print JSON or YAML."""
    if output is Format.YAML:
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
    colours: Mapping[str, str] | None = None,
) -> None:
    """Print a table; the columns named in `right` hold numbers and align right, `colours` are of whole cells.

    On a terminal it has colour and fits the width; in a pipe it is plain, and no cell is cut.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(200, console.width), no_color=True)
    console.print(make_table(columns, rows, right=right, colours=colours))


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    colours: Mapping[str, str] | None = None,
) -> "Table":
    """The same table, for a screen that is drawn again and again."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, (colours or {}).get(cell, "")) for cell in row))
    return table
