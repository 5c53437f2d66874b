"""Shortens a failing list of steps: leaves out steps for as long as the same invariant breaks."""

import time
from collections.abc import Sequence
from dataclasses import replace

from testing.controlplane.invariants import Failure
from testing.controlplane.run import Setting, run
from testing.controlplane.steps import Step


def shrink(
    setting: Setting,
    steps: Sequence[Step],
    failure: Failure,
    until: float = float("inf"),
    steps_enough: int = 0,
) -> tuple[list[Step], Failure]:
    """Return fewer steps with which the same invariant breaks.

    It stops when there are `steps_enough` left, or at `until`, by `time.monotonic`.
    """
    steps, size = list(steps[: failure.at]), max(1, failure.at // 2)

    def done() -> bool:
        return len(steps) <= steps_enough or time.monotonic() >= until

    while size and not done():
        at, shorter = 0, False
        while at < len(steps) and not done():
            fewer = steps[:at] + steps[at + size :]
            found = run(setting, fewer)
            if found is not None and found.invariant == failure.invariant:
                steps, failure, shorter = fewer[: found.at] if found.invariant == "granted" else fewer, found, True
            else:
                at += size
        size = size if shorter and size == 1 else size // 2
    for at, step in enumerate(steps):
        if step.after and not done():
            sooner = [*steps[:at], replace(step, after=0.0), *steps[at + 1 :]]
            found = run(setting, sooner)
            if found is not None and found.invariant == failure.invariant:
                steps, failure = sooner, found
    return steps, failure
