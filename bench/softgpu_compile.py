"""Compile time of the software GPU by shape and size of the code.

uv run python bench/softgpu_compile.py [--most 50000]

CPU seconds of one compiler, so a busy machine changes them little. Close to linear means that ten times as many
instructions take about ten times as long; the last column says which optimization the module got.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from milligpu.softgpu.llvm.compiler import Compiler
from milligpu.softgpu.llvm.effort import effort_for
from milligpu.softgpu.ptx.parse import parse
from testing.ptx_shapes import SHAPES

SIZES = (100, 1_000, 2_000, 10_000, 50_000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=SIZES[-1], help="Most instructions.")
    most = parser.parse_args().most
    compiler = Compiler()
    print(f"{'shape':16} {'instructions':>12} {'CPU seconds':>12} {'us each':>8}  optimization")
    for name, shape in SHAPES.items():
        for size in (each for each in SIZES if each <= most):
            ptx = shape(size)
            start = time.process_time()
            compiler.compile(ptx)
            seconds = time.process_time() - start
            effort = effort_for(parse(ptx)).value
            print(f"{name:16} {size:12,} {seconds:12.2f} {1e6 * seconds / size:8.0f}  {effort}", flush=True)


if __name__ == "__main__":
    main()
