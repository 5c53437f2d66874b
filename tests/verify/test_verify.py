"""`milligpu verify` on a software GPU, as people run it, and with promises broken on purpose."""

import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run
from milligpu.nvml.readings import GpuProcess
from milligpu.softgpu.start import client_environment
from milligpu.verify.runner import ProgramRunner
from milligpu.verify.suite import SoftwareRule, all_checks, run_suite
from tests.enforce.rig import soft_gpus
from tests.sessions.conftest import Machine

PROGRAM = (sys.executable, "-c", "from milligpu.cli.main import main; main()")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    yield machine
    machine.close()


def _verify(machine: Machine, *options: str) -> tuple[int, dict[str, Any], str]:
    command = [*PROGRAM, "verify", "-o", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=machine.env, timeout=280, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def _results(report: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["result"] for each in report["checks"]}


def test_a_software_gpu_passes_what_needs_no_card_and_skips_the_rest(machine: Machine, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    slow = {"tinygrad", "numba"}
    names = [check.name for check in all_checks(ProgramRunner("", {}), _NoGpus)]
    wanted = [option for name in names if name not in slow for option in ("--check", name)]
    code, report, errors = _verify(machine, "--html", str(page), *wanted)
    found = _results(report)
    assert {name for name, result in found.items() if result == "passed"} == {
        "libcuda",
        "graphs",
        "checkpoint",
        "memory-limit",
    }, report
    assert set(found.values()) == {"passed", "skipped"}
    assert (code, report["format"], report["machine"]["software_gpu"]) == (0, "verify/v1", True)
    # The page was shown before it was written, and says on what it ran.
    assert errors.index("will contain this and nothing else") < errors.index("wrote ")
    assert json.dumps(report["machine"]["gpus"][0]["model"]) in errors
    assert "Software GPU." in page.read_text()
    for private in (os.uname().nodename, str(machine.folder), "GPU-"):
        assert private not in page.read_text()


def test_frameworks_that_run_on_a_software_gpu_train_and_infer(machine: Machine) -> None:
    code, report, _ = _verify(machine, "--check", "tinygrad", "--check", "numba")
    assert (code, _results(report)) == (0, {"tinygrad": "passed", "numba": "passed"}), report


def test_only_skipped_checks_are_exit_code_3_and_a_missing_framework_has_a_fix(machine: Machine) -> None:
    code, report, _ = _verify(machine, "--check", "nccl", "--check", "cupy", "--measure-software")
    assert (code, _results(report)) == (3, {"nccl": "skipped", "cupy": "skipped"})
    messages = {each["name"]: (each["message"], each["fix"]) for each in report["checks"]}
    assert messages["nccl"] == ("needs 2 GPUs; this machine has 1", "")
    assert messages["cupy"][0] == "cupy is not installed"
    assert "pip install cupy" in messages["cupy"][1]


@pytest.mark.alone
def test_measurements_on_a_software_gpu_stay_skipped_with_their_figures(machine: Machine) -> None:
    names = ("context-bytes", "granule-bytes", "launch-cost-4", "shares-70-30", "time-slice")
    options = [option for name in names for option in ("--check", name)]
    code, report, _ = _verify(machine, "--measure-software", *options)
    assert (code, set(_results(report).values())) == (3, {"skipped"}), report
    figures = {each["name"]: each["figures"] for each in report["checks"]}
    assert figures["context-bytes"]["charged_mib"] == figures["context-bytes"]["driver_mib"] > 0
    assert figures["launch-cost-4"]["limited_ns"] > 0
    shares = figures["shares-70-30"]
    assert shares["tenant_1_percent"] + shares["tenant_2_percent"] == pytest.approx(100, abs=0.1)
    assert all("on the software GPU: " in each["message"] for each in report["checks"])


def test_programs_run_with_the_python_that_was_named(machine: Machine) -> None:
    code, report, _ = _verify(machine, "--check", "graphs", "--python", "/bin/false")
    assert (code, _results(report)) == (1, {"graphs": "failed"}), report


def test_a_page_is_written_without_asking_if_that_was_said(machine: Machine, tmp_path: Path) -> None:
    for options, answer, written in (((), "n", False), (("--yes",), "", True)):
        page = tmp_path / f"{written}.html"
        ends = pty.openpty()
        os.write(ends[0], f"{answer}\n".encode())
        command = [*PROGRAM, "verify", "--check", "nvidia-smi", "--html", str(page)]
        subprocess.run([*command, *options], stdin=ends[1], env=machine.env, capture_output=True, check=False)
        assert page.exists() == written


def test_an_unknown_check_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--check", "memory"]) == 2
    said = capsys.readouterr().err
    assert "--check: invalid value 'memory': must be one of libcuda, nvidia-smi, graphs" in said


class _NoGpus:
    """An NVML that shows nothing."""

    def known(self) -> Mapping[int, object]:
        return {0: object()}

    def processes(self) -> Sequence[GpuProcess]:
        return ()


class _Unlimited(ProgramRunner):
    """Gives every program the whole GPU without the limits library, whatever share it should have."""

    def command(self, share: Sequence[str]) -> list[str]:
        return ["env"]


def _broken(runner: ProgramRunner, *names: str) -> dict[str, tuple[str, str]]:
    checks = [check for check in all_checks(runner, _NoGpus) if check.name in names]
    results = run_suite(checks, SoftwareRule.MEASURE, lambda check: None, lambda result: None)
    return {each.result.name: (str(each.result.result), each.result.message) for each in results}


def test_without_the_limits_library_exactly_the_checks_of_limits_fail(tmp_path: Path) -> None:
    with soft_gpus(tmp_path, memory=4 << 30) as gpus:
        env = {**os.environ, **client_environment(gpus.folder, os.environ)}
        found = _broken(_Unlimited(sys.executable, env), "libcuda", "graphs", "checkpoint", "memory-limit")
    assert {name: result for name, (result, _) in found.items()} == {
        "libcuda": "failed",
        "graphs": "passed",
        "checkpoint": "passed",
        "memory-limit": "failed",
    }, found
    assert "the limits library is not mapped" in found["libcuda"][1]
    assert "could be allocated" in found["memory-limit"][1]


def test_a_program_that_ends_badly_is_a_failed_check_and_the_others_still_run() -> None:
    found = _broken(_Unlimited("/bin/false", os.environ), "libcuda", "memory-limit", "context-bytes", "tinygrad")
    assert {result for result, _ in found.values()} == {"failed"}
    assert len(found) == 4
    assert found["libcuda"][1] == "libcuda.py ended with code 1: no message"
