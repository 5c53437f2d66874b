"""CPU time of `milligpu --help`, compared with the interpreter alone and the interpreter with click.

uv run python bench/startup.py
"""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 15
PYTHON = sys.executable
MILLIGPU = str(Path(PYTHON).parent / "milligpu")
CASES = {
    "python, nothing else": [PYTHON, "-c", "pass"],
    "python, import click": [PYTHON, "-c", "import click"],
    "milligpu --help": [MILLIGPU, "--help"],
    "milligpu --version": [MILLIGPU, "--version"],
}


def cpu_ms(command: list[str]) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    """Run all cases in turns, so that other load on the machine affects all of them."""
    samples: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(RUNS):
        for name, command in CASES.items():
            samples[name].append(cpu_ms(command))
    base = statistics.median(samples["python, nothing else"])
    print(f"{'median of ' + str(RUNS) + ' runs':24} {'CPU ms':>8} {'x python':>9}")
    for name, values in samples.items():
        median = statistics.median(values)
        print(f"{name:24} {median:8.0f} {median / base:9.1f}")


if __name__ == "__main__":
    main()
