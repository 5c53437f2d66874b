"""Compilers that take too long, or are busy when their daemon ends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milligpu.softgpu.compile import compile_in_time
from milligpu.softgpu.driver_wire import DriverStatus
from milligpu.softgpu.llvm.effort import Effort, effort_for, walk_steps
from milligpu.softgpu.ptx.parse import parse
from testing.ptx_shapes import SHAPES

BUSY = """
import asyncio, pathlib, sys, time
from milligpu.softgpu.compile import CompileService

async def main():
    service = CompileService(pathlib.Path(sys.argv[1]))
    compiler = service._idle.get_nowait()
    compiler.submit(int).result()
    compiler.submit(time.sleep, 1000)
    service.close()

if __name__ == "__main__":
    asyncio.run(main())
"""

# The optimizer never ends; then nothing ends, for one module; the last module compiles as always.
SLOW = """
import asyncio, pathlib, sys
import milligpu.softgpu.compile as service_module
from milligpu.softgpu.compile import CompileService
from milligpu.softgpu.llvm.compiler import Compiler

compile_ptx = Compiler.compile

def endless(self, ptx, *, simple=False):
    while "never" in ptx or ("slow" in ptx and not simple):
        pass
    return compile_ptx(self, ptx, simple=simple)

Compiler.compile = endless
service_module._LIMITS = {False: (0.5, 0.0, 0.5), True: (0.5, 0.0, 0.5)}
HEAD = ".version 8.0\\n.target sm_80\\n.address_size 64\\n"

async def main():
    service = CompileService(pathlib.Path(sys.argv[1]))
    names = ("slow", "never", "quick")
    images = [f"{HEAD}.visible .entry {name}() {{ ret; }}".encode() for name in names]
    for each in await asyncio.gather(*(service.compile(image, (8, 6)) for image in images)):
        print(each.status.name)
    service.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_busy_compilers_end_with_their_daemon(tmp_path: Path) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY)
    subprocess.run([sys.executable, program, tmp_path / "cache"], check=True, timeout=100)


def test_log_softmax_of_45_numbers_compiles(client: Callable[..., dict[str, Any]]) -> None:
    """LLVM's loop vectorizer does not end on the maximum of 45 numbers that is subtracted from each."""
    assert client("softmax.py") == {"log_softmax": True}


def test_chains_loops_and_reductions_of_any_size_compute_what_numpy_does(
    client: Callable[..., dict[str, Any]],
) -> None:
    same = client("shapes.py")
    assert len(same) == 2 * len(SHAPES)
    assert all(same.values()), same


@pytest.mark.parametrize("name", SHAPES)
def test_ten_thousand_instructions_of_any_shape_compile_without_a_second_try(name: str) -> None:
    """Within the CPU time that the compile service gives to code that it optimizes, so a walk without end fails."""
    ptx = SHAPES[name](10_000)
    assert compile_in_time(ptx.encode(), (8, 6), timed=False, simple=False)[0] is DriverStatus.SUCCESS


def test_a_value_that_each_step_uses_twice_doubles_the_walk() -> None:
    short, long = (walk_steps(parse(SHAPES["square chain"](size)).functions["shape"]) for size in (8, 12))
    assert long > 4 * short
    assert effort_for(parse(SHAPES["select chain"](30))) is Effort.FULL
    assert effort_for(parse(SHAPES["select chain"](135))) is Effort.NO_LOOPS
    assert effort_for(parse(SHAPES["unrolled loop"](1_000))) is Effort.FULL
    assert effort_for(parse(SHAPES["unrolled loop"](5_000))) is Effort.PLAIN


def test_a_module_that_takes_too_long_to_optimize_is_compiled_without(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "cache"], check=True, timeout=100, capture_output=True, text=True
    )
    assert done.stdout.split() == ["SUCCESS", "INVALID_PTX", "SUCCESS"]
