"""Simulate the control plane, and print the shortest steps that break it."""

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, starmap
from pathlib import Path

from testing.controlplane.invariants import Failure
from testing.controlplane.progress import Progress
from testing.controlplane.run import RUN_STEPS, Setting, run, seeds_of, steps_of
from testing.controlplane.shrink import shrink

# Runs that a process is given at a time.
_CHUNK = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testing.controlplane", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="Seed of all runs.")
    parser.add_argument("--steps", type=int, default=10_000, help=f"Steps in all; each run has {RUN_STEPS}.")
    parser.add_argument("--run", metavar="SEED", help="Carry out one run, such as 0.12.")
    parser.add_argument("--shrink-seconds", type=float, default=120.0, help="Time for shortening a failing run.")
    parser.add_argument("--shrink-to", type=int, default=0, help="Steps that are few enough (as few as possible).")
    parser.add_argument("--kinds", nargs="+", default=[], help="Kinds of steps, such as create fault:bind (all).")
    parser.add_argument("--queue", action="store_true", help="Let there be a queue, for steps of the kind queued.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes.")
    parser.add_argument(
        "--progress",
        type=Path,
        metavar="FILE",
        help="Note here what was run, go on after a failure, and continue here if the file exists.",
    )
    options = parser.parse_args()
    start = time.monotonic()
    if options.progress is not None:
        return _go_on(options, Progress.load(options.progress, options.seed))
    runs = [(options.run, RUN_STEPS)] if options.run else list(seeds_of(options.seed, options.steps))
    for name, count, failure in _carry_out(runs, options):
        if failure is not None:
            _report(name, count, failure, options)
            return 1
    print(f"{sum(count for _, count in runs)} steps in {time.monotonic() - start:.1f} s, all invariants held")
    return 0


def _go_on(options: argparse.Namespace, progress: Progress) -> int:
    """Carry out the runs that are missing, and note those that break an invariant."""
    runs = list(islice(seeds_of(options.seed, options.steps), progress.runs, None))
    start = time.monotonic()
    for number, (name, count, failure) in enumerate(_carry_out(runs, options), 1):
        progress.add(name, count, failure)
        if number % _CHUNK == 0 or number == len(runs):
            progress.seconds += time.monotonic() - start
            start = time.monotonic()
            progress.save(options.progress)
    print(progress.describe())
    return 1 if progress.failed else 0


def _carry_out(
    runs: list[tuple[str, int]], options: argparse.Namespace
) -> Iterator[tuple[str, int, Failure | None]]:
    """Yield each run with what broke in it, in order."""
    work = partial(_run, kinds=options.kinds, queue=options.queue)
    if options.jobs <= 1 or not runs:
        yield from (
            (name, count, failure) for (name, count), failure in zip(runs, starmap(work, runs), strict=True)
        )
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        found = pool.map(work, *zip(*runs, strict=True), chunksize=_CHUNK)
        try:
            yield from ((name, count, failure) for (name, count), failure in zip(runs, found, strict=True))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(name: str, count: int, kinds: list[str], *, queue: bool) -> Failure | None:
    return run(Setting.draw(name, queue=queue), steps_of(name, count, kinds))


def _report(name: str, count: int, failure: Failure, options: argparse.Namespace) -> None:
    setting, until = Setting.draw(name, queue=options.queue), time.monotonic() + options.shrink_seconds
    steps, failure = shrink(setting, steps_of(name, count, options.kinds), failure, until, options.shrink_to)
    print(f"run {name} of {setting} breaks '{failure.invariant}': {failure.message}")
    for at, step in enumerate(steps, 1):
        print(f"{at:3} {step}")


if __name__ == "__main__":
    sys.exit(main())
