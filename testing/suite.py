"""`make test` and its relatives: runs of pytest one after the other, and one summary of them.

Kubernetes is built in the background while the tests run that do not need it. The summary counts the tests of every
run, names those that failed, and compares the times with tests/budget.toml.

Tests that failed run once more, one at a time. Those that pass then are unsteady: the run passes and names them.
They fail on a machine that stops a process for seconds, or because of a race; somebody has to find out which.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

from testing.times import Timed, load, read_budget, tables

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out"
TESTED = ROOT / "docs/tested.md"
# Tests wait for other programs now and then: one worker more than processors keeps these busy.
WAITING = 1
# Clusters share the machine's addresses and its memory, and each has a dozen programs and 2 GiB: three at a time,
# which keeps two processors busy.
CLUSTERS = "3"
LOG_LINES = 40
# More than the tests of one shared cluster are not bad luck.
RETRIED_MAX = 20


@dataclass(frozen=True)
class Phase:
    """A run of pytest."""

    name: str
    about: str
    selection: str
    """Which tests, as an expression over marks."""
    workers: tuple[str, ...] = ("-n", "0")
    kubernetes: bool = True
    pytest: tuple[str, ...] = (sys.executable, "-m", "pytest")
    only: tuple[str, ...] = ()
    """Files and expressions that narrow the selection."""


def _cores(more: int = 0) -> str:
    return str(max(2, len(os.sched_getaffinity(0))) + more)


# These files cover most of native/ in little time. The expression leaves out large programs, which take minutes
# with the sanitizers, a test of how the ordinary libraries are linked, and counts of calls that follow the clock.
SANITIZED = Phase(
    "sanitized",
    "tests of native/ with sanitizers",
    "not alone and not long",
    ("-n", _cores()),
    kubernetes=False,
    pytest=("tools/sanitized",),
    only=(
        "tests/wire/test_pages.py",
        "tests/lease/test_choose.py",
        "tests/lease/test_gangs.py",
        "tests/lease/test_pace.py",
        "tests/lease/test_turns.py",
        "tests/lease/test_processes.py",
        "tests/enforce/test_devices.py",
        "tests/enforce/test_every.py",
        "tests/enforce/test_images.py",
        "tests/enforce/test_memory.py",
        "tests/enforce/test_routes.py",
        "tests/enforce/strict",
        "tests/remote/test_fuzz.py",
        "tests/softgpu/test_bad_input.py",
        "tests/softgpu/test_threads.py",
        "tests/softgpu/test_timeline.py",
        "-k",
        "not (tinygrad or numba or unknown_length or glibc or collectives or further_calls)",
    ),
)
FAST = Phase(
    "fast",
    "tests without Kubernetes",
    "not e2e and not alone and not long",
    ("-n", _cores(WAITING), "--dist", "worksteal"),
    kubernetes=False,
)
E2E = Phase(
    "e2e",
    "tests on shared clusters",
    "e2e and not alone and not long",
    # devcluster.fixtures has the longest group first; xdist would start with the one of most tests.
    ("-n", CLUSTERS, "--dist", "loadgroup", "--no-loadscope-reorder"),
)
ALONE = Phase("alone", "tests that run one at a time", "alone and not long")
LONG = Phase("long", "long random runs", "long")
TIERS = {
    "test-fast": (FAST,),
    "test-sanitized": (SANITIZED,),
    "test": (SANITIZED, FAST, E2E, ALONE),
    "test-all": (SANITIZED, FAST, E2E, ALONE, LONG),
}


@dataclass
class Done:
    """The result of a phase."""

    phase: Phase
    seconds: float
    code: int
    tests: list[Timed] = field(default_factory=list[Timed])

    @property
    def failed(self) -> list[Timed]:
        """The tests that failed."""
        return [test for test in self.tests if test.outcome == "failed"]

    @property
    def unsteady(self) -> list[Timed]:
        """The tests that failed, then passed alone."""
        return [test for test in self.tests if test.outcome == "unsteady"]

    @property
    def ok(self) -> bool:
        """Whether the run completed and no test failed."""
        return self.code == 0


class Build:
    """Kubernetes, which is being built in the background."""

    def __init__(self) -> None:
        self.log = OUT / "kubernetes.log"
        self.seconds = 0.0
        self._started = time.monotonic()
        with self.log.open("w") as log:
            self._process = subprocess.Popen(["make", "build-for-tests"], cwd=ROOT, stdout=log, stderr=log)
        self._thread = Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        self._process.wait()
        self.seconds = time.monotonic() - self._started

    def finish(self) -> bool:
        """Wait for the build and show its output; return whether it succeeded."""
        if self._process.poll() is None:
            say(f"Kubernetes is still being built; its output is also in {self.log.relative_to(ROOT)}")
            for line in self._lines():
                print(line, end="", flush=True)
        self._thread.join()
        if self._process.returncode != 0:
            last = self.log.read_text().splitlines()[-LOG_LINES:]
            say("Kubernetes could not be built", *last)
        return self._process.returncode == 0

    def _lines(self) -> Iterator[str]:
        with self.log.open() as log:
            while True:
                running = self._process.poll() is None
                yield from log
                if not running:
                    return
                time.sleep(0.5)

    def abandon(self) -> None:
        """End the build if no phase needs it."""
        self._process.terminate()
        self._thread.join()


def say(title: str, *lines: str) -> None:
    """Print a title that stands out from pytest's lines, and what belongs to it."""
    print(f"\n== {title}", *lines, sep="\n", flush=True)


def run(phase: Phase) -> Done:
    """Run the tests of a phase, and those that failed once more."""
    say(f"{phase.name}: {phase.about}")
    done = _pytest(phase, "-m", phase.selection, *phase.workers, *phase.only)
    if 0 < len(done.failed) <= RETRIED_MAX:
        names = [test.name for test in done.failed]
        say(f"{phase.name}: {len(names)} tests failed and run once more, one at a time", *names)
        done = merge(done, _pytest(phase, "-n", "0", *names))
    return done


def _pytest(phase: Phase, *arguments: str) -> Done:
    file = OUT / f"times-{phase.name}.json"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    command = [*phase.pytest, "-q", f"--times={file}", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return Done(phase, time.monotonic() - started, code, load(file))


def merge(first: Done, second: Done) -> Done:
    """Return the result of a phase whose failed tests ran a second time."""
    steady = {test.name for test in second.tests if test.outcome == "passed"}
    tests = [
        replace(test, outcome="unsteady") if test.outcome == "failed" and test.name in steady else test
        for test in first.tests
    ]
    # pytest's 1 says that tests failed and nothing else happened.
    all_steady = first.code == 1 and second.code == 0 and not any(test.outcome == "failed" for test in tests)
    return Done(first.phase, first.seconds + second.seconds, 0 if all_steady else first.code, tests)


def run_tier(tier: str) -> bool:
    """Run all phases of a tier, even after a failure; return whether all passed."""
    OUT.mkdir(exist_ok=True)
    phases, started, finished = TIERS[tier], time.monotonic(), list[Done]()
    build = Build() if any(phase.kubernetes for phase in phases) else None
    try:
        for phase in phases:
            if phase.kubernetes and build is not None and not build.finish():
                break
            finished.append(run(phase))
    finally:
        if build is not None:
            build.abandon()
    ok = len(finished) == len(phases) and all(done.ok for done in finished)
    say(f"make {tier}: {_verdict(finished, ok)} in {_minutes(time.monotonic() - started)}")
    print(*summary(phases, finished, build.seconds if build else None), sep="\n", flush=True)
    if ok and tier == "test-all":
        TESTED.write_text(page(finished))
    return ok


def _verdict(finished: Sequence[Done], ok: bool) -> str:
    failed = sum(len(done.failed) for done in finished)
    if ok:
        return f"all {sum(len(done.tests) for done in finished)} tests passed or were skipped"
    return f"{failed} tests FAILED" if failed else "NOT all tests ran"


def summary(phases: Sequence[Phase], finished: Sequence[Done], build_s: float | None) -> list[str]:
    """Lines that say what ran, what failed and where the time went."""
    lines = ["", f"{'':10}{'passed':>8}{'skipped':>9}{'failed':>8}{'min':>8}"]
    if build_s is not None:
        lines.append(f"{'build':10}{'':25}{_minutes(build_s):>8}  Kubernetes, during tests that do not need it")
    for phase in phases:
        done = next((done for done in finished if done.phase is phase), None)
        row = _row(done) if done else f"{'did not run':>25}{'':8}"
        lines.append(f"{phase.name:10}{row}  {phase.about}")
    all_ = [test for done in finished for test in done.tests]
    lines += ["", *tables(all_, read_budget())]
    failed = [test.name for done in finished for test in done.failed]
    unsteady = [test.name for done in finished for test in done.unsteady]
    if unsteady:
        lines += ["", "unsteady: failed at first, passed alone", *unsteady]
    odd = [f"{done.phase.name}: pytest ended with {done.code}" for done in finished if not (done.ok or done.failed)]
    return lines + (["", "failed", *failed, *odd] if failed or odd else [])


def _row(done: Done) -> str:
    outcomes = (("passed", "unsteady"), ("skipped",), ("failed",))
    counts = [sum(test.outcome in each for test in done.tests) for each in outcomes]
    return f"{counts[0]:8}{counts[1]:9}{counts[2]:8}{_minutes(done.seconds):>8}"


def page(finished: Sequence[Done]) -> str:
    """Return the page that says what was last tested in full."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = " and changes to it" if git("status", "--porcelain", "--untracked-files=no") else ""
    rows = [
        f"| {done.phase.about} | {len(done.tests)} | "
        f"{sum(test.outcome == 'skipped' for test in done.tests)} | {_minutes(done.seconds)} |"
        for done in finished
    ]
    unsteady = [test for done in finished for test in done.unsteady]
    return "\n".join(
        [
            "# Tested",
            "",
            "`make test-all` writes this page when no test fails.",
            "",
            f"Commit {git('rev-parse', 'HEAD')}{changed}, on {datetime.now(UTC):%Y-%m-%d}, {_cores()} cores.",
            "",
            "| what | tests | of these skipped | minutes |",
            "|---|---|---|---|",
            *rows,
            *(f"\nUnsteady, failed at first and passed alone: {test.name}" for test in unsteady),
            "",
        ]
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def main() -> int:
    """Run a tier."""
    parser = argparse.ArgumentParser(prog="python -m testing.suite", description="Run the tests of a tier.")
    parser.add_argument("tier", choices=TIERS)
    return 0 if run_tier(parser.parse_args().tier) else 1


if __name__ == "__main__":
    sys.exit(main())
