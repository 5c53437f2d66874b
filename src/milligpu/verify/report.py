"""Make the report: results as they are sent to others, with everything private removed."""

from collections.abc import Sequence
from datetime import date

from milligpu import __version__
from milligpu.checks.result import CheckLevel, CheckOutcome
from milligpu.verify.privacy import PrivateWords
from milligpu.verify.suite import TimedResult
from milligpu.wire.verify import FORMAT, VerifiedCheck, VerifiedMachine, VerifyReport, VerifySummary


def make_report(
    machine: VerifiedMachine, results: Sequence[TimedResult], private: PrivateWords, day: date
) -> VerifyReport:
    """Make the report of one run."""
    return VerifyReport(
        FORMAT,
        __version__,
        day.isoformat(),
        machine,
        summarize(results),
        [
            VerifiedCheck(
                each.group,
                each.name,
                str(each.level),
                str(each.result),
                private.remove(each.message),
                private.remove(each.fix),
                round(timed.seconds, 1),
                {name: round(value, 3) for name, value in each.figures.items()},
            )
            for timed in results
            for each in (timed.result,)
        ],
    )


def summarize(results: Sequence[TimedResult]) -> VerifySummary:
    """Count the results."""
    every = [timed.result for timed in results]
    failures = [each for each in every if each.result is CheckOutcome.FAILED]
    warnings = sum(each.level is CheckLevel.WARNING for each in failures)
    return VerifySummary(
        sum(each.result is CheckOutcome.PASSED for each in every),
        len(failures) - warnings,
        warnings,
        sum(each.result is CheckOutcome.SKIPPED for each in every),
    )
