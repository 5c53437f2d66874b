"""Simulate the control plane, and print the shortest steps that break it."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import starmap

from testing.controlplane.invariants import Failure
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
    parser.add_argument("--kinds", nargs="+", default=[], help="Kinds of steps, such as create fault:bind (all).")
    parser.add_argument("--jobs", type=int, default=1, help="Processes.")
    options = parser.parse_args()
    start, done = time.monotonic(), 0
    runs = [(options.run, RUN_STEPS)] if options.run else list(seeds_of(options.seed, options.steps))
    carry_out = partial(_carry_out, kinds=options.kinds)
    with ProcessPoolExecutor(options.jobs) as pool:
        if options.jobs > 1:
            found = pool.map(carry_out, *zip(*runs, strict=True), chunksize=_CHUNK)
        else:
            found = starmap(carry_out, runs)
        for (name, count), failure in zip(runs, found, strict=True):
            done += count
            if failure is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                _report(name, count, failure, options)
                return 1
    print(f"{done} steps in {time.monotonic() - start:.1f} s, all invariants held")
    return 0


def _carry_out(name: str, count: int, kinds: list[str]) -> Failure | None:
    return run(Setting.draw(name), steps_of(name, count, kinds))


def _report(name: str, count: int, failure: Failure, options: argparse.Namespace) -> None:
    setting, until = Setting.draw(name), time.monotonic() + options.shrink_seconds
    steps, failure = shrink(setting, steps_of(name, count, options.kinds), failure, until)
    print(f"run {name} of {setting} breaks '{failure.invariant}': {failure.message}")
    for at, step in enumerate(steps, 1):
        print(f"{at:3} {step}")


if __name__ == "__main__":
    sys.exit(main())
