"""Progress for a person: lines on stderr, so that stdout stays free for what is to be pasted."""

import sys
from collections.abc import Callable

Report = Callable[[str], None]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def to_nobody(line: str) -> None:
    """For callers who only want to hear of errors."""
    del line
