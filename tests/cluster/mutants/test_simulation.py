"""The control plane in virtual time: all invariants hold, and faults that are put back are found.

`NN.patch` puts back fault NN. The program that runs it finds the package in a copy of the source, and not where it
is installed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testing.controlplane.run import RUN_STEPS, Setting, run, steps_of

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
# Per patch: the run, the kinds of steps that it is drawn from, and the invariant that breaks.
FAULTS = {
    "01": ("01.29", ["create", "finish", "relist"], "granted"),
    "02": ("02.1", ["create", "finish", "blocked:claim"], "released"),
    "03": ("03.68", ["create", "finish", "fault:nominate", "down:nominate"], "bound"),
    "04": ("04.2", ["create", "finish"], "vain"),
    "06": ("06.2", ["create", "finish", "watch:half-open"], "leader"),
    "09": ("09.55", ["create", "finish", "delete", "relist"], "memory"),
}
STEPS_MAX = 40
RUNS = 10
_PROGRAM = """
import runpy, sys
sys.meta_path = [each for each in sys.meta_path if type(each).__name__ != "ScikitBuildRedirectingFinder"]
sys.path[:0] = sys.argv.pop(1), sys.argv.pop(1)
runpy.run_module("testing.controlplane", run_name="__main__")
"""


def test_every_patch_is_tried() -> None:
    assert {path.stem for path in HERE.glob("*.patch")} == FAULTS.keys()


@pytest.mark.parametrize("number", range(RUNS))
def test_all_invariants_hold(number: int) -> None:
    name = f"0.{number}"
    assert run(Setting.draw(name), steps_of(name, RUN_STEPS)) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_back_is_found(fault: str, tmp_path: Path) -> None:
    seed, kinds, invariant = FAULTS[fault]
    assert run(Setting.draw(seed), steps_of(seed, RUN_STEPS, kinds)) is None
    for part in ("src", "testing"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    subprocess.run(["patch", "-p1", "-s", "-i", str(HERE / f"{fault}.patch")], cwd=tmp_path, check=True)

    paths = [str(tmp_path / "src"), str(tmp_path)]
    arguments = ["--run", seed, "--shrink-seconds", "20", "--kinds", *kinds]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *paths, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    found, *steps = done.stdout.splitlines()
    assert f"breaks '{invariant}'" in found
    assert len(steps) <= STEPS_MAX
