"""One line of the doctor's report."""

import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from milligpu.model.errors import MilligpuError


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at and how it stands; one that fails says how to mend it."""

    what: str
    passed: bool
    detail: str
    fix: str = ""


def good(what: str, detail: str) -> Finding:
    """It is as it should be."""
    return Finding(what, True, detail)


def bad(what: str, detail: str, fix: str) -> Finding:
    """It is not."""
    return Finding(what, False, detail, fix)


def unreachable(path: Path) -> str:
    """Why nobody answers behind a unix socket; empty when somebody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            return f"{path}: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True)
class Check:
    """Something to look at, and what to do when it cannot even be looked at."""

    what: str
    look: Callable[[], Iterable[Finding] | Awaitable[Iterable[Finding]]]
    fix: str = "run this as the user that runs the agent, on the node itself"


async def examine(checks: Iterable[Check]) -> list[Finding]:
    """All findings; a check that cannot be made is one, too, and ends none of the others."""
    found: list[Finding] = []
    for check in checks:
        try:
            answer = check.look()
            found += answer if isinstance(answer, Iterable) else await answer
        except MilligpuError as error:
            found.append(bad(check.what, error.message, error.hint or check.fix))
        except OSError as error:
            found.append(bad(check.what, str(error), check.fix))
    return found
