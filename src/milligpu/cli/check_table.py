"""The table of check results, for `doctor` and `verify`."""

from collections.abc import Sequence

from milligpu.checks.result import CheckOutcome, CheckResult

CHECK_COLORS = {"passed": "green", "FAILED": "bold red", "warning": "yellow", "skipped": "dim"}


def shown_result(each: CheckResult) -> str:
    """How a result is called in a table."""
    if each.result is not CheckOutcome.FAILED:
        return str(each.result)
    return "FAILED" if each.is_error else "warning"


def check_rows(results: Sequence[CheckResult]) -> list[list[str]]:
    """A row for each result, and one of its own for the fix."""
    rows: list[list[str]] = []
    for each in results:
        rows.append([each.group, each.name, shown_result(each), each.message])
        if each.fix:
            rows.append(["", "", "", f"fix: {each.fix}"])
    return rows
