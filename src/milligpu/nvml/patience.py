"""Calls that may hang, each in a thread of its own that is given up after a deadline."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Call:
    since: float
    answer: "Future[Any]" = field(default_factory=Future[Any])


class PatientCalls:
    """Makes calls with a deadline. A call that hangs keeps one thread; it is not made again until it returns."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._running: dict[str, _Call] = {}
        self._starting = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Whether a call has not returned yet."""
        with self._starting:
            return any(not each.answer.done() for each in self._running.values())

    def together(self, calls: Mapping[str, Callable[[], _T]]) -> list[_T | Exception]:
        """Make all calls at once; return what each returns or raises, and a TimeoutError for those that hang.

        While a call of a name runs, wait for that one.
        """
        started = [self._start(name, function) for name, function in calls.items()]
        return [self._wait(each) for each in started]

    def one(self, name: str, function: Callable[[], _T]) -> _T:
        """Make one call; return what it returns, or raise what it raises, or TimeoutError."""
        (answer,) = self.together({name: function})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _wait(self, call: _Call) -> Any:
        try:
            return call.answer.result(max(0.0, call.since + self._seconds - self._now()))
        except Exception as error:
            return error

    def _start(self, name: str, function: Callable[[], Any]) -> _Call:
        with self._starting:
            running = self._running.get(name)
            if running is not None and not running.answer.done():
                return running
            call = self._running[name] = _Call(self._now())

        def run() -> None:
            try:
                call.answer.set_result(function())
            except Exception as error:
                call.answer.set_exception(error)

        # A daemon: the process can end while the call hangs.
        threading.Thread(target=run, name=name, daemon=True).start()
        return call


def run_program(command: Sequence[str], seconds: float, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, or kill it after some seconds and raise `subprocess.TimeoutExpired`.

    `subprocess.run` waits until a killed program has ended, which one that hangs in a driver never does.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
