"""What a check returns, and how checks are run."""

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from milligpu.model.errors import MilligpuError


class CheckLevel(StrEnum):
    """How bad a failure is."""

    ERROR = "error"
    """It does not work; the exit code says so."""
    WARNING = "warning"
    """It works, but may not for long."""
    INFO = "info"
    """A fact that is neither good nor bad."""


class CheckOutcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Something that the check needs is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report; a failed one suggests a fix."""

    group: str
    name: str
    level: CheckLevel
    result: CheckOutcome
    message: str
    fix: str = ""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was measured, by name with its unit."""

    @property
    def is_error(self) -> bool:
        """Whether the exit code must report it."""
        return self.result is CheckOutcome.FAILED and self.level is CheckLevel.ERROR


def passed(name: str, message: str, figures: Mapping[str, float] | None = None) -> CheckResult:
    """A passed check; `run_checks` adds the group, here and below."""
    return CheckResult("", name, CheckLevel.ERROR, CheckOutcome.PASSED, message, figures=figures or {})


def noted(name: str, message: str, figures: Mapping[str, float] | None = None) -> CheckResult:
    """A fact that people want to know, with nothing to judge."""
    return CheckResult("", name, CheckLevel.INFO, CheckOutcome.PASSED, message, figures=figures or {})


def failed(
    name: str,
    message: str,
    fix: str,
    level: CheckLevel = CheckLevel.ERROR,
    figures: Mapping[str, float] | None = None,
) -> CheckResult:
    """A failed check with its suggested fix."""
    return CheckResult("", name, level, CheckOutcome.FAILED, message, fix, figures or {})


def skipped(name: str, message: str, fix: str = "", figures: Mapping[str, float] | None = None) -> CheckResult:
    """A check that could not be made; the message says what it needs, the fix how to provide it."""
    return CheckResult("", name, CheckLevel.ERROR, CheckOutcome.SKIPPED, message, fix, figures or {})


def socket_error(path: Path) -> str:
    """Why a connection to a unix socket fails; empty if it succeeds."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            return f"{path}: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True)
class Check:
    """A function that checks something, and the fix to suggest if it raises an error."""

    group: str
    name: str
    run: Callable[[], Iterable[CheckResult] | Awaitable[Iterable[CheckResult]]]
    fix: str = "run this command on the node, as the user that runs the agent"


async def run_checks(checks: Iterable[Check]) -> list[CheckResult]:
    """Run all checks; one that raises an error counts as failed and the others still run."""
    results: list[CheckResult] = []
    for check in checks:
        found: list[CheckResult] = []
        try:
            answer = check.run()
            # One by one: the results before an error count.
            for each in answer if isinstance(answer, Iterable) else await answer:
                found.append(each)
        except MilligpuError as error:
            found.append(failed(check.name, error.message, error.hint or check.fix))
        except OSError as error:
            found.append(failed(check.name, str(error), check.fix))
        results += [replace(each, group=check.group) for each in found]
    return results
