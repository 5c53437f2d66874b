"""Run programs with a share of this machine's GPU, exactly as users do: under `milligpu run`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from milligpu.measure.testbed import LoadProgram, LoadReport
from milligpu.model.errors import MilligpuError, Unavailable

_PROGRAMS = Path(__file__).parent / "programs"
_MILLIGPU = (sys.executable, "-c", "from milligpu.cli.main import main; main()")
# The share of the check before is free as soon as its processes have ended.
_WAIT_SECONDS = "30"
_NO_CAPACITY = 75
# A program that ends by itself; PyTorch takes a minute to be imported from a slow disk.
PROGRAM_SECONDS = 180.0
_LOAD_SECONDS = 90.0
WHOLE_GPU: tuple[str, ...] = ()


class CheckImpossible(MilligpuError):
    """A check cannot be made here; it is skipped, and the hint says what it needs."""


class ProgramRunner:
    """Starts programs in sessions. `python` is the interpreter that has the frameworks."""

    def __init__(self, python: str, env: Mapping[str, str]) -> None:
        self.python = python
        self.env = env

    def command(self, share: Sequence[str]) -> list[str]:
        """The command that gives a share to the command behind it; a test replaces it to break the promise."""
        return [*_MILLIGPU, "run", "--timeout", _WAIT_SECONDS, *share, "--"]

    def run(self, share: Sequence[str], argv: Sequence[str]) -> str:
        """Run a command to its end and return its output."""
        with self.started(share, argv) as process:
            out, err = process.communicate(timeout=PROGRAM_SECONDS)
            return _checked(argv, process.returncode, out, err)

    def program(self, share: Sequence[str], name: str, *arguments: str) -> dict[str, Any]:
        """Run one of `programs/` to its end and return its answer."""
        argv = self.program_argv(name, *arguments)
        lines = self.run(share, argv).splitlines()
        try:
            return json.loads(lines[-1])
        except (IndexError, ValueError):
            raise Unavailable(f"{name}.py ended without an answer") from None

    def program_argv(self, name: str, *arguments: str) -> list[str]:
        return [self.python, str(_PROGRAMS / f"{name}.py"), *arguments]

    @contextlib.contextmanager
    def started(self, share: Sequence[str], argv: Sequence[str]) -> Generator[subprocess.Popen[str]]:
        """Start a command that is talked to; it and its children end with the block, or after their time."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*self.command(share), *argv], env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            with _time_limit(PROGRAM_SECONDS, lambda: _kill(process)):
                yield process
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{Path(argv[-1]).name} did not end within {PROGRAM_SECONDS:.0f} s") from None
        finally:
            _kill(process)
            process.communicate()

    def loads(
        self, loads: Sequence[tuple[Sequence[str], Sequence[str]]], wait: Callable[[], None] = lambda: None
    ) -> list[LoadReport]:
        """Run programs of known load at the same time, each as (share, load); `wait` says how long they work."""
        programs: list[LoadProgram] = []

        def end() -> None:
            for program in programs:
                program.kill()

        try:
            with _time_limit(_LOAD_SECONDS, end):
                for share, load in loads:
                    programs.append(LoadProgram(load, self.env, self.command(share), quiet=True))
                    programs[-1].wait_ready()
                for program in programs:
                    program.begin()
                wait()
                return [program.end() for program in programs]
        except (Unavailable, BrokenPipeError, IndexError, ValueError, subprocess.TimeoutExpired) as error:
            if any(program.returncode == _NO_CAPACITY for program in programs):
                raise _nothing_free() from None
            if isinstance(error, Unavailable):
                raise
            raise Unavailable("milligpu-load ended without a report") from None
        finally:
            end()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line of a program; an error with what it said last if it has ended."""
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    out, err = process.communicate(timeout=PROGRAM_SECONDS)
    return _checked((), process.returncode, out, err)


def _nothing_free() -> CheckImpossible:
    return CheckImpossible("no GPU was free", hint="stop other programs and sessions on this machine's GPUs")


def _checked(argv: Sequence[str], code: int, out: str, err: str) -> str:
    if code == _NO_CAPACITY:
        raise _nothing_free()
    if code:
        name = (
            Path(argv[1] if len(argv) > 1 and argv[1].endswith(".py") else argv[0]).name if argv else "the program"
        )
        said = [line for line in err.splitlines() if line.strip() and not line.startswith("milligpu: this machine")]
        ending = signal.Signals(-code).name if code < 0 else f"code {code}"
        raise Unavailable(f"{name} ended with {ending}: {said[-1].strip() if said else 'no message'}")
    return out


@contextlib.contextmanager
def _time_limit(seconds: float, end: Callable[[], None]) -> Generator[None]:
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
