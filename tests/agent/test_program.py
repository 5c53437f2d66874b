import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from milligpu.agent.program import install, sweep

HOLD = """
import os, sys
from milligpu.agent.program import run_from
from pathlib import Path
run_from(Path(sys.argv[1]), Path(sys.argv[2]))
print(os.environ["PYTHONPATH"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "site/milligpu"
    (package / "_native").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_native/libcuda.so.1").write_text("one")
    return package


def test_each_version_has_a_directory_of_its_own(tmp_path: Path, package: Path) -> None:
    first = install(package, tmp_path / "program")
    assert (first / "milligpu/_native/libcuda.so.1").read_text() == "one"
    assert install(package, tmp_path / "program") == first
    (package / "_native/libcuda.so.1").write_text("two")
    second = install(package, tmp_path / "program")
    assert second != first
    assert (first / "milligpu/_native/libcuda.so.1").read_text() == "one"


def test_a_copy_that_a_container_mounts_is_kept(tmp_path: Path, package: Path) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    mounted = install(package, tmp_path / "program")
    (cdi / "milligpu-one.json").write_text(f'{{"hostPath": "{mounted}/milligpu/_native/libcuda.so.1"}}')
    (package / "_native/libcuda.so.1").write_text("two")
    unused = install(package, tmp_path / "program")
    (package / "_native/libcuda.so.1").write_text("three")
    current = install(package, tmp_path / "program")
    sweep(tmp_path / "program", current, cdi)
    assert mounted.is_dir()
    assert not unused.exists()
    assert current.is_dir()


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    (tmp_path / "cdi").mkdir()
    script = tmp_path / "agent.py"
    script.write_text(HOLD)
    command = [sys.executable, str(script), str(tmp_path / "program"), str(tmp_path / "cdi")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_agent_runs_from_the_copy_which_is_kept_until_it_ends(
    tmp_path: Path, package: Path, running: "subprocess.Popen[str]"
) -> None:
    assert running.stdout
    copy = Path(running.stdout.readline().strip())
    assert copy.parent == tmp_path / "program"
    current = install(package, tmp_path / "program")
    sweep(tmp_path / "program", current, tmp_path / "cdi")
    assert copy.is_dir()
    running.kill()
    running.wait()
    sweep(tmp_path / "program", current, tmp_path / "cdi")
    assert not copy.exists()
