"""Single keys from the terminal, without Enter."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any


class KeyReader:
    """Reads keys inside a `with` block. If stdin is not a terminal there are no keys, and `wait` only waits."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None

    def __enter__(self) -> "KeyReader":
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the next key; empty if none is pressed in time."""
        if self._file is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._file], [], [], seconds)
        return os.read(self._file, 1).decode(errors="replace") if ready else ""
