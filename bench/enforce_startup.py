"""How much the limits library adds to the start of a program: with and without it, in turns, on one software GPU.

uv run python bench/enforce_startup.py [--runs 101]

Measures opening and initializing the driver, a context and a first allocation; prints the medians and
the median difference.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.enforce import rig  # the tenant folder, by hand

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=101)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as place, rig.soft_gpus(Path(place)) as gpus:
        folder = Path(place)
        program = folder / "start"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "enforce_startup.c", "-ldl"], check=True)
        tenant = rig.tenant(folder / "tenant", gpus)
        paths = {"bare": tenant.folder / "tenant/real/libcuda.so.1", "limited": tenant.folder / "libcuda.so.1"}
        times: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(runs):
            for name, path in paths.items():
                status, micros = tenant.run(program, path).stdout.split()
                if status != "0":
                    raise SystemExit(f"{name}: CUDA error {status}")
                times[name].append(float(micros))
    added = [limited - bare for limited, bare in zip(times["limited"], times["bare"], strict=True)]
    for name, values in {**times, "added": added}.items():
        print(f"{name:8} {statistics.median(values) / 1000:8.2f} ms")


if __name__ == "__main__":
    main()
