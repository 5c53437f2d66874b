"""Record which functions of the driver a program calls, with which sizes.

The recorder is a library in front of the limits library (native/record). It writes a line per call; here the lines
become threads, and what repeats becomes loops, so that a training of an hour is as long as one of its steps.
"""

import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from milligpu.native import library
from milligpu.tenancy.tenant import CUDA
from milligpu.verify.runner import ProgramRunner
from milligpu.wire.recording import RecordedCall, RecordedLoop, RecordedThread

FILE_VARIABLE, NEXT_VARIABLE = "MILLIGPU_RECORD", "MILLIGPU_RECORD_NEXT"
# Little is left to others, but the program has the limits library, as in a container.
SHARE = ("-p", "0.9")
# A step of a training makes some hundred calls; comparing longer ones with each other takes minutes.
LOOP_MAX = 512
# In the session the limits library is the first that the loader finds.
_IN_FRONT = (
    f'first=${{LD_LIBRARY_PATH%%:*}}; export {NEXT_VARIABLE}="$first/{CUDA}"'
    ' LD_LIBRARY_PATH="$0:$LD_LIBRARY_PATH"; exec "$@"'
)


def record(runner: ProgramRunner, argv: Sequence[str]) -> tuple[int, list[RecordedThread]]:
    """Run a command with a share, to its end; return its exit code and what it called."""
    command = [*runner.command(SHARE), "sh", "-c", _IN_FRONT, str(library(f"record/{CUDA}").parent), *argv]
    with tempfile.TemporaryDirectory(prefix="milligpu-") as folder:
        file = Path(folder) / "calls"
        file.touch()
        done = subprocess.run(command, env={**runner.env, FILE_VARIABLE: str(file)}, check=False)
        with file.open() as lines:
            return done.returncode, list(read_threads(lines))


@dataclass(frozen=True, slots=True)
class _Loop:
    """Numbers of steps, repeated."""

    times: int
    steps: tuple["int | _Loop", ...]


def read_threads(lines: Iterable[str]) -> Iterator[RecordedThread]:
    """Make threads of the recorder's lines; one that is cut off, because the disk was full, is left out."""
    numbers: dict[str, int] = {}
    threads: dict[tuple[int, int], list[int]] = {}
    for line in lines:
        process, thread, call = line.split(" ", 2)
        if line.endswith("\n"):
            steps = threads.setdefault((int(process), int(thread)), [])
            steps.append(numbers.setdefault(call.rstrip("\n"), len(numbers)))
    calls = {number: _call(text) for text, number in numbers.items()}
    processes: dict[int, int] = {}
    for (process, _), steps in threads.items():
        at = processes[process] = processes.get(process, 0) + 1
        yield RecordedThread(list(processes).index(process) + 1, at, _written(fold(steps), calls))


def fold(steps: Iterable[int]) -> list["int | _Loop"]:
    """Fold what repeats itself, loops in loops included."""
    found: list[int | _Loop] = []
    for step in steps:
        found.append(step)
        while _fold_end(found):
            pass
    return found


def _fold_end(found: list["int | _Loop"]) -> bool:
    """Fold the end of a list, if it repeats what is before it."""
    last = found[-1]
    for length in range(1, min(LOOP_MAX, len(found) - 1) + 1):
        before = found[-1 - length]
        if isinstance(before, _Loop) and len(before.steps) == length and before.steps[-1] == last:
            if before.steps == tuple(found[-length:]):
                found[-1 - length :] = [_Loop(before.times + 1, before.steps)]
                return True
        elif before == last and len(found) >= 2 * length and found[-2 * length : -length] == found[-length:]:
            found[-2 * length :] = [_Loop(2, tuple(found[-length:]))]
            return True
    return False


def _call(text: str) -> RecordedCall:
    name, status, *sizes = text.split()
    pairs = (size.partition("=") for size in sizes)
    return RecordedCall(name, {each: int(value) for each, _, value in pairs}, int(status))


def _written(
    steps: Iterable["int | _Loop"], calls: Mapping[int, RecordedCall]
) -> list[RecordedCall | RecordedLoop]:
    return [
        RecordedLoop(step.times, _written(step.steps, calls)) if isinstance(step, _Loop) else calls[step]
        for step in steps
    ]
