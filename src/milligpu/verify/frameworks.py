"""PyTorch and others, where they are installed: a small training and an inference each, with a share."""

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from milligpu.checks.result import CheckResult
from milligpu.model.errors import Unavailable
from milligpu.verify.driver import library_files, limits_library
from milligpu.verify.judge import FrameworkReadings, judge_framework
from milligpu.verify.memory import LIMIT, SHARE
from milligpu.verify.runner import CheckImpossible, ProgramRunner

# Two GPUs, and half of each, so that the processes on both are held to shares.
_TWO_GPUS = ("--gpus", "2", *SHARE)
_FIND = """import importlib.util, json, sys
print(json.dumps([importlib.util.find_spec(module) is not None for module in sys.argv[1:]]))"""
_FIND_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, the modules that it needs, and the program that tries it."""

    name: str
    modules: Sequence[str]
    program: str
    install: str
    software: bool = False
    """Whether it also runs on the software GPU, which runs PTX only."""
    gpus: int = 1


FRAMEWORKS = (
    Framework("pytorch", ("torch",), "try_pytorch", "pip install torch"),
    Framework("torch-compile", ("torch", "triton"), "try_torch_compile", "pip install torch"),
    Framework("vllm", ("vllm",), "try_vllm", "pip install vllm"),
    Framework("cupy", ("cupy",), "try_cupy", "pip install cupy-cuda13x"),
    Framework("jax", ("jax", "jaxlib"), "try_jax", "pip install 'jax[cuda13]'"),
    Framework("tinygrad", ("tinygrad",), "try_tinygrad", "pip install tinygrad", software=True),
    Framework("numba", ("numba", "numba_cuda"), "try_numba", "pip install numba-cuda", software=True),
    Framework("nccl", ("torch",), "try_nccl", "pip install torch", gpus=2),
)


class FrameworkChecks:
    """Runs frameworks of the runner's Python."""

    def __init__(self, runner: ProgramRunner, gpu_count: Callable[[], int]) -> None:
        self._runner = runner
        self._gpu_count = gpu_count
        self._installed = cache(self._find)

    def run(self, framework: Framework) -> Iterable[CheckResult]:
        """Let a framework train and infer."""
        count = self._gpu_count()
        if count < framework.gpus:
            raise CheckImpossible(f"needs {framework.gpus} GPUs; this machine has {count}")
        missing = [module for module in framework.modules if not self._installed()[module]]
        if missing:
            hint = f"{framework.install}, or name the Python that has it: --python PATH"
            raise CheckImpossible(f"{', '.join(missing)} is not installed", hint=hint)
        answer = self._runner.program(_TWO_GPUS if framework.gpus == 2 else SHARE, framework.program)
        return [judge_framework(framework.name, limits_library(), LIMIT, _readings(answer))]

    def _find(self) -> dict[str, bool]:
        """Which modules the Python of the runner has; importing them would take minutes."""
        modules = sorted({module for framework in FRAMEWORKS for module in framework.modules})
        command = [self._runner.python, "-c", _FIND, *modules]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FIND_SECONDS, check=True, env=self._runner.env
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"could not run the Python with the frameworks: {error}") from None
        return dict(zip(modules, json.loads(done.stdout), strict=True))


def _readings(answer: dict[str, Any]) -> FrameworkReadings:
    return FrameworkReadings(
        answer["version"],
        answer["total"],
        library_files(answer["mapped"]),
        answer.get("losses", ()),
        answer.get("error", 0.0),
        answer.get("tokens", ()),
        answer.get("expected", ()),
    )
