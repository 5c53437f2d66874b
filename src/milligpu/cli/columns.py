"""Tables that fit a width: long names are cut, nothing wraps, and the least important columns are left out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `least` is the width to which its text may be cut; None where it may not."""

    title: str
    right: bool = False
    least: int | None = None
    middle: bool = False
    """Whether to cut text in its middle: names often differ at the end."""
    importance: int = 10
    """Columns of the lowest importance are left out where the width does not suffice."""


def fit_table(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """Return the lines of a table with a heading, none longer than `width`."""
    sizes = [
        max([len(column.title), *(row[at].cell_len for row in rows)], default=0)
        for at, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while len(kept) > 1 and _least(columns, sizes, kept) + len(kept) - 1 > width:
        kept.remove(min(kept, key=lambda at: columns[at].importance))
    gap = 2 if _least(columns, sizes, kept) + 2 * (len(kept) - 1) <= width else 1
    sizes = _shrink(columns, sizes, kept, width - gap * (len(kept) - 1))
    heading = [Text(column.title, "bold") for column in columns]
    return [_line(columns, row, sizes, kept, gap) for row in (heading, *rows)]


def _least(columns: Sequence[Column], sizes: Sequence[int], kept: Sequence[int]) -> int:
    return sum(sizes[at] if columns[at].least is None else min(sizes[at], columns[at].least or 0) for at in kept)


def _shrink(columns: Sequence[Column], sizes: Sequence[int], kept: Sequence[int], width: int) -> list[int]:
    """Cut the widest of the columns that may be cut, until all fit."""
    sizes = list(sizes)
    for _ in range(sum(sizes[at] for at in kept) - width):
        open_ = [at for at in kept if columns[at].least is not None and sizes[at] > (columns[at].least or 0)]
        if not open_:
            break
        sizes[max(open_, key=lambda at: sizes[at])] -= 1
    return sizes


def _line(
    columns: Sequence[Column], row: Sequence[Text], sizes: Sequence[int], kept: Sequence[int], gap: int
) -> Text:
    line = Text(no_wrap=True)
    for number, at in enumerate(kept):
        cell = _cut(row[at], sizes[at], middle=columns[at].middle)
        space = " " * (sizes[at] - cell.cell_len)
        last = number == len(kept) - 1
        line.append(" " * gap if number else "")
        line.append_text(
            Text.assemble(space, cell) if columns[at].right else Text.assemble(cell, "" if last else space)
        )
    return line


def _cut(cell: Text, size: int, *, middle: bool) -> Text:
    if cell.cell_len <= size:
        return cell
    tail = (size - 1) // 2 if middle else 0
    return Text.assemble(cell[: size - 1 - tail], "…", cell[len(cell) - tail :] if tail else "")


def wrap_words(sentence: str, width: int) -> str:
    """Wrap between words and after slashes, so that a UUID after its node's name stays in one piece."""
    lines, line = list[str](), ""
    for word in re.findall(r"[^\s/]*/|[^\s/]+\s*|\s+", sentence):
        if line and len(line) + len(word.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
    return "\n".join([*lines, line.rstrip()])
