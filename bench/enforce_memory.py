"""Eight processes of one tenant allocate and free at random: never above the memory limit, and zero at the end.

uv run python bench/enforce_memory.py [--seconds 60]

Reads the GPU's own count and the memory account continuously, and prints the highest value of either.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.enforce import rig  # the tenant folder, by hand

PROCESSES = 8
CHURN = Path(__file__).parents[1] / "tests/enforce/clients/churn.py"


def say(process: subprocess.Popen[str]) -> None:
    """Let a process start its work."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def line(process: subprocess.Popen[str]) -> str:
    """The next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    limit = PROCESSES * rig.CONTEXT + 100 * rig.MIB
    with tempfile.TemporaryDirectory() as place, rig.soft_gpus(Path(place)) as gpus:
        tenant = rig.tenant(Path(place) / "tenant", gpus, limit)
        workers = [tenant.start(sys.executable, CHURN, str(seconds), str(seed)) for seed in range(PROCESSES)]
        for worker in workers:
            line(worker)
        for worker in workers:
            say(worker)
        most, looks, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            most, looks = max(most, gpus.used(), tenant.account().used), looks + 1
        for worker in workers:
            line(worker)
        contexts, account = PROCESSES * rig.CONTEXT, tenant.account()
        print(f"memory limit {limit}, most seen {most} in {looks} looks, account's peak {account.peak}")
        print(f"refused {account.refused}; at the end beyond contexts {account.used - contexts}", end="")
        tenant.close()
        print(f", after the processes {tenant.held()}")


if __name__ == "__main__":
    main()
