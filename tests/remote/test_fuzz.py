"""Both sides' decoders with random input, as from a hostile client and from a hostile server, under the sanitizers.

The programs are built with the sanitizers only (`tools/sanitized`); elsewhere the short tests do not exist.
"""

import os
import subprocess
from pathlib import Path

import pytest

from milligpu.model.errors import Unavailable
from milligpu.native import library

ROOT = Path(__file__).parents[2]
SIDES = ("worker", "client")
SEED = 21


def find(side: str) -> Path | None:
    try:
        return library(f"milligpu-fuzz-{side}")
    except Unavailable:
        return None


def fuzz(program: Path, seed: int, count: int, seconds: int) -> None:
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    env["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    done = subprocess.run(
        [program, str(seed), "0", str(count)],
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        errors="replace",
    )
    said = "\n".join(line for line in done.stderr.splitlines() if "the GPU server is lost" not in line)
    assert done.returncode == 0, said[-4000:]
    assert done.stdout == f"{count} inputs\n"


if find("worker") is not None:

    @pytest.mark.parametrize("side", SIDES)
    def test_random_frames_reach_no_memory_and_no_handle_of_others(side: str) -> None:
        program = find(side)
        assert program is not None
        fuzz(program, SEED, 60_000, 300)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(5 * 3600)
@pytest.mark.parametrize("side", SIDES)
def test_ten_million_random_frames_reach_no_memory_and_no_handle_of_others(side: str) -> None:
    built = list(
        ROOT.glob(f"build/sanitized/venv/lib/python3*/site-packages/milligpu/_native/milligpu-fuzz-{side}")
    )
    assert built, "run `make test-sanitized` first: it builds the program"
    fuzz(built[0], SEED + 1, 10_000_000, 4 * 3600)
