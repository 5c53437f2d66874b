"""Rewrite the tables in docs/ that are made from the code: `uv run python docs/generate.py`."""

from pathlib import Path

from milligpu.dialects.choose import KNOWN
from milligpu.dialects.table import with_tables

if __name__ == "__main__":
    page = Path(__file__).with_name("dialects.md")
    page.write_text(with_tables(page.read_text(), KNOWN))
