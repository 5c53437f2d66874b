"""The checks of `milligpu verify`, in the order in which they run: what is quick and decisive comes first."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from milligpu.checks.result import Check, CheckOutcome, CheckResult, run_checks, skipped
from milligpu.verify.compute import ComputeChecks
from milligpu.verify.driver import DriverChecks
from milligpu.verify.frameworks import FRAMEWORKS, FrameworkChecks
from milligpu.verify.judge import REPORT
from milligpu.verify.memory import GpuCounts, MemoryChecks
from milligpu.verify.runner import CheckImpossible, ProgramRunner


class SoftwareRule(Enum):
    """What becomes of a check that needs a real GPU on a machine that has none."""

    SKIP = "skip"
    MEASURE = "measure"
    """It runs, and its figures are in the message; the result stays skipped."""


@dataclass(frozen=True, slots=True)
class VerifyCheck:
    """One check; its name is what `--check` takes."""

    group: str
    name: str
    run: Callable[[], Iterable[CheckResult]]
    needs_card: bool = False
    """A claim about real GPUs, which a software GPU can neither prove nor disprove."""


@dataclass(frozen=True, slots=True)
class TimedResult:
    """A result and how long its check took."""

    result: CheckResult
    seconds: float


def all_checks(runner: ProgramRunner, gpus: Callable[[], GpuCounts]) -> list[VerifyCheck]:
    """All checks for the GPUs of this machine, which are opened when a check needs them."""
    driver, memory, compute = DriverChecks(runner), MemoryChecks(runner, gpus), ComputeChecks(runner)
    frameworks = FrameworkChecks(runner, lambda: len(gpus().known()))

    def check(
        group: str, name: str, run: Callable[[str], Iterable[CheckResult]], *, card: bool = False
    ) -> VerifyCheck:
        return VerifyCheck(group, name, lambda: run(name), card)

    return [
        check("driver", "libcuda", driver.libraries),
        check("driver", "nvidia-smi", driver.nvidia_smi, card=True),
        check("driver", "graphs", driver.graphs),
        check("driver", "checkpoint", driver.checkpoint),
        check("memory", "memory-limit", memory.limit),
        check("memory", "context-bytes", memory.context, card=True),
        check("memory", "granule-bytes", memory.granule, card=True),
        check("memory", "fatbin-bytes", memory.fat_binary, card=True),
        check("compute", "launch-cost", lambda name: compute.launch_cost(name, 1), card=True),
        check("compute", "launch-cost-4", lambda name: compute.launch_cost(name, 4), card=True),
        check("compute", "shares-70-30", lambda name: compute.shares(name, (700, 300)), card=True),
        check("compute", "shares-50-30-20", lambda name: compute.shares(name, (500, 300, 200)), card=True),
        check("compute", "time-slice", compute.time_slice, card=True),
        *(
            VerifyCheck("programs", each.name, lambda each=each: frameworks.run(each), needs_card=not each.software)
            for each in FRAMEWORKS
        ),
    ]


def run_suite(
    checks: Sequence[VerifyCheck],
    rule: SoftwareRule | None,
    begin: Callable[[VerifyCheck], None],
    done: Callable[[TimedResult], None],
) -> list[TimedResult]:
    """Run these checks; `rule` is for software GPUs, None on real ones."""
    found: list[TimedResult] = []
    for check in checks:
        begin(check)
        started = time.monotonic()
        results = asyncio.run(
            run_checks([Check(check.group, check.name, lambda check=check: _run(check, rule), REPORT)])
        )
        for result in results:
            found.append(TimedResult(result, time.monotonic() - started))
            done(found[-1])
    return found


def _run(check: VerifyCheck, rule: SoftwareRule | None) -> list[CheckResult]:
    """Run one check. On a software GPU, a claim about real GPUs never passes and never fails."""
    software = check.needs_card and rule is not None
    if software and rule is SoftwareRule.SKIP:
        return [skipped(check.name, "needs a real GPU")]
    try:
        results = list(check.run())
    except CheckImpossible as error:
        return [skipped(check.name, error.message, error.hint)]
    return [as_skipped(each) for each in results] if software else results


def as_skipped(result: CheckResult) -> CheckResult:
    """The figures of a software GPU, without a verdict."""
    message = f"needs a real GPU; on the software GPU: {result.message}"
    return replace(result, result=CheckOutcome.SKIPPED, message=message, fix="")
