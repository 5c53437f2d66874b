"""Whether the memory limit holds, and whether tenants are charged what the driver takes."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from milligpu.checks.result import CheckResult
from milligpu.model.units import BYTES_PER_MIB
from milligpu.nvml.readings import GpuProcess
from milligpu.verify.judge import judge_charge, judge_memory_limit
from milligpu.verify.runner import CheckImpossible, ProgramRunner, read_line

LIMIT = 2048 * BYTES_PER_MIB
SHARE = ("-p", "0.5", "-m", "2Gi")
# As programs/charges.py has it.
_BLOCKS = 32
_STEPS = ("context", "granule", "fatbin")


@dataclass(frozen=True, slots=True)
class ChargeReading:
    """One step of a program: what it was charged, and what the driver took meanwhile."""

    charged: int
    driver: int


class GpuCounts(Protocol):
    """The driver's own view of the GPUs: NVML."""

    def known(self) -> Mapping[int, object]:
        """Return the GPUs by index."""
        ...

    def processes(self) -> Sequence[GpuProcess]:
        """List the processes on the GPUs."""
        ...


class MemoryChecks:
    """Checks of memory, against the driver's own count through NVML."""

    def __init__(self, runner: ProgramRunner, gpus: Callable[[], GpuCounts]) -> None:
        self._runner = runner
        self._gpus = gpus
        self._readings = cache(self._read)

    def limit(self, name: str) -> Iterable[CheckResult]:
        """Allocate on every route until nothing is left, and ask the driver how much that is."""
        with self._runner.started(SHARE, self._runner.program_argv("memory_limit")) as process:
            answer = json.loads(read_line(process))
            held = self._process_bytes(process.pid)
        routes = {route: (each["bytes"], each["status"]) for route, each in answer["routes"].items()}
        return [judge_memory_limit(name, LIMIT, routes, held)]

    def context(self, name: str) -> Iterable[CheckResult]:
        return [self._judge(name, "context", "a CUDA context")]

    def granule(self, name: str) -> Iterable[CheckResult]:
        return [self._judge(name, "granule", "an allocation of 2 MiB and a byte", _BLOCKS)]

    def fat_binary(self, name: str) -> Iterable[CheckResult]:
        return [self._judge(name, "fatbin", "code for two architectures")]

    def _judge(self, name: str, step: str, what: str, count: int = 1) -> CheckResult:
        reading = self._readings()[step]
        return judge_charge(name, what, reading.charged, reading.driver, count)

    def _read(self) -> dict[str, ChargeReading]:
        found: dict[str, ChargeReading] = {}
        with self._runner.started(SHARE, self._runner.program_argv("charges")) as process:
            before = 0
            for step in _STEPS:
                answer = json.loads(read_line(process))
                used = self._process_bytes(process.pid)
                if used is None:
                    hint = "run outside of containers, where NVML shows processes"
                    raise CheckImpossible("NVML does not show how much memory a process uses", hint=hint)
                found[step] = ChargeReading(answer["charged"], used - before)
                before = used
                _go_on(process)
        return found

    def _process_bytes(self, pid: int) -> int | None:
        """The memory that the driver counts for a process; None if NVML does not say."""
        mine = [each.memory for each in self._gpus().processes() if each.pid == pid and each.memory is not None]
        return sum(mine) * BYTES_PER_MIB if mine else None


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
