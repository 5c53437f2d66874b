"""What a launch costs, how exactly time is shared, and for how long a GPU switches to another program."""

import time
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import median

from milligpu.checks.result import CheckResult
from milligpu.measure.share_windows import WINDOW_NS, BusySample
from milligpu.measure.testbed import LoadReport
from milligpu.native import library
from milligpu.verify.judge import judge_launches, judge_shares, judge_slices
from milligpu.verify.runner import WHOLE_GPU, CheckImpossible, ProgramRunner

_PAIRS = 3
_KERNEL_US = 1000
# Windows of ten seconds, sliding over two more, after a second in which everything starts.
_WARM_NS, _WORK_SECONDS = 1_000_000_000, WINDOW_NS / 1e9 + 3.5
_SLICE_SECONDS = "3"
# Nearly all of the GPU, and all of its idle time, with the limits library.
_ALONE = ("-p", "0.9", "--limit", "1")


class ComputeChecks:
    """Checks that need a GPU of their own for some seconds."""

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner
        self._turns = cache(self._calibrate)

    def launch_cost(self, name: str, streams: int) -> Iterable[CheckResult]:
        """Time launches without and with the limits library, in turn; the medians count."""
        load = ("launches", f"streams={streams}")
        found = [(self._launch(WHOLE_GPU, load), self._launch(_ALONE, load)) for _ in range(_PAIRS)]
        return [judge_launches(name, median(bare for bare, _ in found), median(limited for _, limited in found))]

    def _launch(self, share: Sequence[str], load: Sequence[str]) -> int:
        return self._runner.loads([(share, load)])[0].p50_ns

    def shares(self, name: str, milli: Sequence[int]) -> Iterable[CheckResult]:
        """Let tenants work as fast as they can, each with a share, and compare the work that ended."""
        load = ("work", f"turns={self._turns()}")
        loads = [(("-p", f"{each / 1000:g}", "--limit", "1"), load) for each in milli]
        reports = self._runner.loads(loads, lambda: time.sleep(_WORK_SECONDS))
        if len({report.gpu for report in reports}) > 1:
            hint = "stop other programs on this machine's GPUs, so that all shares go to one GPU"
            raise CheckImpossible("the shares are on different GPUs", hint=hint)
        return [judge_shares(name, [each / 10 for each in milli], common_samples(reports))]

    def _calibrate(self) -> int:
        return self._runner.loads([(WHOLE_GPU, ("calibrate", f"kernel={_KERNEL_US}"))])[0].turns

    def time_slice(self, name: str) -> Iterable[CheckResult]:
        """Run two programs without limits on one GPU and look at how long each pauses."""
        load = (str(library("milligpu-load")), "slices")
        reports = self._runner.program(WHOLE_GPU, "pair", _SLICE_SECONDS, *load)["reports"]
        pauses = sum(each["answers"] for each in reports)
        return [judge_slices(name, pauses, median(each["p50_ns"] for each in reports))]


def common_samples(reports: Sequence[LoadReport]) -> list[BusySample]:
    """What each tenant had finished at the same moments, while all of them worked; tenants are numbered."""
    if not all(report.samples for report in reports):
        return []
    start = max(report.samples[0][0] for report in reports) + _WARM_NS
    end = min(report.samples[-1][0] for report in reports)
    times = [when for when, _ in reports[0].samples if start <= when <= end]
    return [
        BusySample(when, {number: _finished(report.samples, when) for number, report in enumerate(reports)})
        for when in times
    ]


def _finished(samples: Sequence[tuple[int, int]], when: int) -> int:
    """Thousandths of kernels that had ended at a time between two samples."""
    before = next(at for at in range(len(samples) - 1, -1, -1) if samples[at][0] <= when)
    time_before, count = samples[before]
    if before + 1 == len(samples):
        return count * 1000
    time_after, later = samples[before + 1]
    return count * 1000 + (later - count) * 1000 * (when - time_before) // max(1, time_after - time_before)
