"""The control plane in virtual time: all invariants hold, and faults that are put back are found.

`NN.patch` puts back fault NN of the list in docs/scheduler.md; other names are faults that were tried besides. The
program that runs a patch finds the package in a copy of the source, and not where it is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from testing.controlplane.run import RUN_STEPS, Setting, run, steps_of

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """How a fault is found: the seed of the runs, the kinds of steps in them, and the invariant that breaks."""

    seed: int
    kinds: tuple[str, ...]
    invariant: str
    queue: bool = False


_USUAL = ("create", "finish")
FAULTS = {
    "01": Fault(3, (*_USUAL, "relist"), "granted"),
    "02": Fault(1, (*_USUAL, "blocked:claim"), "released"),
    "03": Fault(11, (*_USUAL, "fault:nominate", "down:nominate"), "bound"),
    "04": Fault(1, _USUAL, "vain"),
    "06": Fault(1, (*_USUAL, "watch:half-open"), "leader"),
    "09": Fault(2, (*_USUAL, "force-delete", "delete", "relist"), "memory"),
    "11": Fault(1, _USUAL, "preferred"),
    "12": Fault(1, ("create", "agent", "delete"), "bound"),
    "09-read": Fault(9, ("create", "delete", "force-delete", "pause"), "memory"),
    "09-lease": Fault(4, (*_USUAL, "fault:bind", "stop"), "granted"),
    "bind-unanswered": Fault(1, (*_USUAL, "fault:bind"), "granted"),
    "term-too-long": Fault(2, (*_USUAL, "pause", "down:lease"), "leader"),
    "unhealthy": Fault(1, (*_USUAL, "gpu"), "healthy"),
}
# Runs that were not clean once: of the seed's own kinds of steps, or of some.
ONCE_UNCLEAN = {
    "21.247": (),
    "0.10": (),
    "09.33": ("create", "finish", "delete", "relist"),
    "5.9": (),
    "6.0": (),
    "30.245": (),
    "30.360": (),
    "100.569": (),
    "100.763": (),
    "100.935": (),
    "100.1404": (),
    "100.1804": (),
    "100.2035": (),
    "100.2070": (),
    "100.2193": (),
    "100.2567": (),
    "100.2931": (),
    "100.3098": (),
    "100.4241": (),
    "203.3": (),
}
STEPS_MAX = 40
# At most so many runs are tried with a fault; it is found in one of the first.
RUNS_MAX = 30
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


@pytest.mark.parametrize("name", ONCE_UNCLEAN)
def test_runs_that_broke_an_invariant_once_are_clean(name: str) -> None:
    assert run(Setting.draw(name), steps_of(name, RUN_STEPS, ONCE_UNCLEAN[name])) is None


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(0)
def test_ten_million_steps_are_clean() -> None:
    """It takes hours. Stopped and started again, it goes on where it was, for as long as the code is the same."""
    code = sorted(path for part in ("src", "testing") for path in (ROOT / part).rglob("*.py"))
    digest = sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:12]
    folder = Path.home() / ".cache" / "milligpu"
    folder.mkdir(parents=True, exist_ok=True)
    jobs, progress = str(os.cpu_count() or 1), str(folder / f"simulation-{digest}.json")
    arguments = ["--seed", "100", "--steps", "10000000", "--jobs", jobs, "--progress", progress]
    command = [sys.executable, "-m", "testing.controlplane", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    for part in ("src", "testing"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.so"))
    subprocess.run(["patch", "-p1", "-s", "-i", str(HERE / f"{name}.patch")], cwd=tmp_path, check=True)

    paths = [str(tmp_path / "src"), str(tmp_path)]
    runs = ["--seed", str(fault.seed), "--steps", str(RUNS_MAX * RUN_STEPS), "--shrink-to", str(STEPS_MAX)]
    which = [*(["--queue"] if fault.queue else []), "--kinds", *fault.kinds]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *paths, *runs, *which],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    found, *steps = done.stdout.splitlines()
    broken = re.match(r"run (\S+) of .* breaks '(\w+)'", found)
    assert broken is not None, found
    assert broken[2] == fault.invariant
    assert len(steps) <= STEPS_MAX
    setting = Setting.draw(broken[1], queue=fault.queue)
    assert run(setting, steps_of(broken[1], RUN_STEPS, fault.kinds)) is None
