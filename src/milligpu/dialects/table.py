"""The tables of docs/dialects.md, made from the dialects' descriptions by `python docs/generate.py`."""

import re
from collections.abc import Iterator

from milligpu.dialects import profiles
from milligpu.dialects.registry import DialectRegistry


def with_tables(page: str, known: DialectRegistry) -> str:
    """Return the page with current tables between its markers."""
    for name, rows in (("forms", _forms(known)), ("systems", _systems(known)), ("settings", _settings(known))):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        table = "\n".join([begin, *rows, end])
        page, count = re.subn(f"{begin}.*?{end}", lambda _, text=table: text, page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"the page has {count} places for the table {name}")
    return page


def _forms(known: DialectRegistry) -> Iterator[str]:
    yield "| dialect | requested with | meaning here |"
    yield "|---|---|---|"
    for dialect in known.dialects:
        for number, form in enumerate(dialect.forms):
            yield f"|{f' `{dialect.name}`' if number == 0 else ''} | {form.written} | {form.meaning} |"
    yield f"| (any) | {profiles.FORM.written} | {profiles.FORM.meaning} |"


def _systems(known: DialectRegistry) -> Iterator[str]:
    yield "| dialect | system and version | schedulers that admission replaces |"
    yield "|---|---|---|"
    for dialect in known.dialects:
        names = ", ".join(f"`{name}`" for name in dialect.schedulers)
        yield f"| `{dialect.name}` | {dialect.source} | {names or 'none'} |"


def _settings(known: DialectRegistry) -> Iterator[str]:
    yield "| option | value | default | meaning |"
    yield "|---|---|---|---|"
    for setting in known.settings:
        yield f"| `--{setting.name}` | {setting.allowed_text} | `{setting.default}` | {setting.help} |"
