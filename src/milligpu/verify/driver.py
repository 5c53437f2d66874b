"""What a CUDA program with a share finds: its libcuda, graphs, checkpoints, nvidia-smi."""

import shutil
from collections.abc import Iterable
from typing import Any

from milligpu.checks.result import CheckResult
from milligpu.model.units import BYTES_PER_MIB
from milligpu.native import library
from milligpu.tenancy.tenant import CUDA
from milligpu.verify.judge import LibraryFile, judge_checkpoint, judge_graphs, judge_libraries, judge_smi
from milligpu.verify.memory import LIMIT, SHARE
from milligpu.verify.runner import CheckImpossible, ProgramRunner


def limits_library() -> LibraryFile:
    """The library that must be in front of the driver's."""
    status = library(f"enforce/{CUDA}").stat()
    return LibraryFile(status.st_dev, status.st_ino, CUDA)


def library_files(answer: list[list[Any]]) -> list[LibraryFile]:
    """Read what a program reports about its mapped libraries."""
    return [LibraryFile(*each) for each in answer]


class DriverChecks:
    """Checks of the driver API as programs see it."""

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner

    def libraries(self, name: str) -> Iterable[CheckResult]:
        answer = self._runner.program(SHARE, "libcuda")
        loaded, mapped = LibraryFile(*answer["loaded"]), library_files(answer["mapped"])
        return [judge_libraries(name, limits_library(), loaded, mapped)]

    def graphs(self, name: str) -> Iterable[CheckResult]:
        answer = self._runner.program(SHARE, "graphs")
        return [judge_graphs(name, answer["expected"], answer["built"], answer["captured"])]

    def checkpoint(self, name: str) -> Iterable[CheckResult]:
        answer = self._runner.program(SHARE, "checkpoint")
        if not answer["supported"]:
            raise CheckImpossible("the driver has no checkpoint functions", hint="install driver 570 or later")
        steps = [(step, status) for step, status in answer["steps"]]
        return [judge_checkpoint(name, steps, unchanged=answer["unchanged"])]

    def nvidia_smi(self, name: str) -> Iterable[CheckResult]:
        if shutil.which("nvidia-smi") is None:
            raise CheckImpossible("nvidia-smi is not installed", hint="install the driver's utilities")
        query = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        lines = self._runner.run(SHARE, query).split()
        return [judge_smi(name, LIMIT, [int(each) * BYTES_PER_MIB for each in lines if each.isdigit()])]
