"""Most of numba-cuda's own test suite, which is in its wheel, on the software GPU.

`numba_suite.toml` has the tests that do not pass, with the reason.
"""

import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.softgpu.conftest import PROGRAM
from tests.softgpu.machine import CLIENTS

KNOWN = Path(__file__).with_name("numba_suite.toml")
SUITE = "numba.cuda.tests"
FOLDERS = ("core", "cudadrv", "cudapy")
# Nobody has looked at their results yet.
UNTRIED = frozenset(
    f"cudapy.test_{name}"
    for name in (
        "array_reductions",
        "cupy_bfloat16_interop",
        "math",
        "print",
        "ufuncs",
        "vector_type",
        "vectorize",
        "warning",
        "warp_ops",
    )
)
MODULE_SECONDS = 900


def modules() -> list[str]:
    """The modules of the suite that are run."""
    spec = find_spec("numba_cuda")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    tests = Path(folder) / "numba/cuda/tests"
    found = [f"{name}.{file.stem}" for name in FOLDERS for file in sorted((tests / name).glob("test_*.py"))]
    return [name for name in found if name not in UNTRIED]


def outcomes(module: str, folder: Path) -> dict[str, str]:
    """How the tests of a module end, in a process and with GPUs of its own."""
    home = folder / module
    home.mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(home), "XDG_CACHE_HOME": str(folder / "cache")}
    client = (sys.executable, CLIENTS / "unit_tests.py", f"{SUITE}.{module}")
    command = [PROGRAM, "softgpu", "exec", "--devices", "2", "--memory", "4Gi", "--", *client]
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=MODULE_SECONDS, check=False
    )
    if done.returncode:
        return {module: f"ended with {done.returncode}: {done.stderr[-400:]}"}
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {name.removeprefix(f"{SUITE}."): outcome for name, outcome in found.items()}


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(7200)
def test_numbas_own_tests_pass_but_for_those_that_are_listed(tmp_path: Path) -> None:
    listed = {name for each in tomllib.loads(KNOWN.read_text()).values() for name in each["tests"]}
    with ThreadPoolExecutor(2) as pool:
        found = {
            name: outcome
            for each in pool.map(lambda module: outcomes(module, tmp_path), modules())
            for name, outcome in each.items()
        }
    passed = {name for name, outcome in found.items() if outcome == "passed"}
    assert len(passed) > 1500
    failed = {name: outcome for name, outcome in found.items() if outcome not in ("passed", "skipped")}
    assert {name: outcome for name, outcome in failed.items() if name not in listed} == {}
    assert listed <= failed.keys(), "these pass now, or are gone"
