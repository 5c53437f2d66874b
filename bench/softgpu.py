"""Speed of the software GPU: launches and a memory-bound kernel from C, modules and training with tinygrad.

uv run python bench/softgpu.py

Ratios compare figures of the same run. The machine should be idle, because kernels use all CPUs.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from milligpu.native import library

HERE = Path(__file__).parent
MILLIGPU = Path(sys.executable).parent / "milligpu"
GOALS = {
    "empty_launch_us": "below 1",
    "saxpy_ratio": "below 5",
    "module_new_ms": "below 50",
    "module_cached_ms": "below 0.5",
    "train_warm_s": "below 10",
}

# Runs the example with a clock around every module that tinygrad loads.
TIMED = """
import json, runpy, statistics, sys, time
from tinygrad.runtime.autogen import cuda
times, load = [], cuda.cuModuleLoadData
def timed(*arguments):
    start = time.perf_counter()
    status = load(*arguments)
    times.append(1000 * (time.perf_counter() - start))
    return status
cuda.cuModuleLoadData = timed
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps({"count": len(times), "median": statistics.median(times)}))
"""


def from_c(folder: Path) -> dict[str, float]:
    """Build and run the C program."""
    driver = library("softgpu/libcuda.so.1")
    include = next(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))
    program = folder / "bench"
    source = [str(HERE / "softgpu.c"), str(driver)]
    subprocess.run(["cc", "-O2", f"-I{include}", "-o", str(program), *source, "-lpthread"], check=True)
    done = subprocess.run([MILLIGPU, "softgpu", "exec", "--", program], capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def training(folder: Path) -> dict[str, float]:
    """Run examples/train.py with an empty compile cache, then with a full one."""
    # As the example has them, which is too late once tinygrad is imported for its clock.
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "DEV": "CUDA", "PARALLEL": "0"}
    command = [MILLIGPU, "softgpu", "exec", "--memory", "4Gi", "--", sys.executable, "-c", TIMED]
    results: dict[str, float] = {}
    for name in ("new", "cached"):
        start = time.perf_counter()
        done = subprocess.run(
            [*command, HERE.parent / "examples/train.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - start
        results[f"module_{name}_ms"] = json.loads(done.stdout.splitlines()[-1])["median"]
    results["train_warm_s"] = seconds
    return results


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = {**from_c(Path(folder)), **training(Path(folder))}
    print(f"{'':20} {'measured':>10}  goal")
    for name, value in results.items():
        print(f"{name:20} {value:10.2f}  {GOALS.get(name, '')}")


if __name__ == "__main__":
    main()
