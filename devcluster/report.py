"""Progress messages on stderr, so that stdout contains only the line to paste."""

import sys
from collections.abc import Callable

Report = Callable[[str], None]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def to_nobody(line: str) -> None:
    """Discard progress messages."""
    del line
