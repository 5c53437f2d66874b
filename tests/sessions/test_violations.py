"""The audit on a living machine: whoever walks around the limits is found, and ended where that was asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from milligpu.cli.main import run
from milligpu.sessions import daemon
from milligpu.sessions.daemon import SessionServiceSettings
from tests.sessions.conftest import Machine, wait_for

ROGUE = str(Path(__file__).parent / "clients/rogue.py")


@pytest.fixture(scope="module", autouse=True)
def one_card(module_machine: Machine) -> None:
    assert module_machine.run("softgpu", "up", "--memory", "4Gi").returncode == 0


def rogue(machine: Machine, how: str) -> subprocess.Popen[str]:
    process = machine.start("-p", "0.25", "--", sys.executable, ROGUE, how)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
    return process


def found(machine: Machine, kind: str) -> dict[str, object] | None:
    return next((each for each in machine.ps()["violations"] if each["kind"] == kind), None)


def test_a_program_that_opens_the_real_driver_is_found(machine: Machine) -> None:
    process = rogue(machine, "around")
    finding = wait_for("the finding", lambda: found(machine, "bypass"))
    assert finding["pid"] == process.pid
    over = wait_for("its memory", lambda: found(machine, "over-memory"))
    assert over["message"] == "the driver counts 2176 MiB, the memory limit is 1024 MiB"
    assert "bypass" in machine.run("top", "--once").stdout
    assert process.poll() is None


def test_a_program_that_clears_its_usage_page_is_found(machine: Machine) -> None:
    rogue(machine, "spoil")
    finding = wait_for("the finding", lambda: found(machine, "wrong-usage-page"))
    assert finding["message"] == "the driver counts 640 MiB, the usage page says 0 MiB"


def test_a_process_outside_all_sessions_is_found(machine: Machine) -> None:
    machine.hold("-p", "0.25")
    exports = machine.run("softgpu", "env").stdout
    code = "import ctypes, time; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0)\n"
    code += "c.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0); time.sleep(600)"
    command = f'{exports}\nexec {sys.executable} -c "{code}"'
    stranger = subprocess.Popen(["sh", "-c", command], env=machine.env)
    try:
        finding = wait_for("the finding", lambda: found(machine, "unknown-process"))
        assert finding["pid"] == stranger.pid
    finally:
        stranger.kill()
        stranger.wait()


def test_a_session_within_its_share_is_no_violation(machine: Machine) -> None:
    program = str(Path(__file__).parent / "clients/memory.py")
    honest = machine.start("-p", "0.25", "--", sys.executable, program, stdin=subprocess.PIPE)
    assert honest.stdout is not None
    honest.stdout.readline()
    rogue(machine, "around")
    wait_for("the other's finding", lambda: found(machine, "bypass"))
    assert honest.pid not in [each["pid"] for each in machine.ps()["violations"]]
    sessions = {each["pid"]: each["id"] for each in machine.sessions()}
    assert sessions[honest.pid] not in [each["tenant"] for each in machine.ps()["violations"]]


def test_with_kill_the_service_ends_a_process_that_bypasses_its_limits(machine: Machine) -> None:
    for pid in machine.agents()[:1]:
        os.kill(pid, signal.SIGTERM)
    wait_for("the agent's end", lambda: not machine.agents())
    command = [sys.executable, "-m", "milligpu.sessions", str(machine.agent), "--idle", "10", "--kill"]
    subprocess.run(command, env=machine.env, check=True)
    honest = machine.hold("-p", "0.25")
    process = rogue(machine, "around")
    assert process.wait(60) == -signal.SIGKILL
    wait_for("its share", lambda: [each["pid"] for each in machine.sessions()] == [honest.pid])


@pytest.mark.parametrize("kill", [False, True])
def test_an_option_of_the_agent_makes_its_service_kill(kill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[SessionServiceSettings] = []

    def serve(settings: SessionServiceSettings) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr(daemon, "run", serve)
    assert run(["agent", "--local", *(["--kill-outside"] if kill else [])]) == 0
    assert [each.kill for each in served] == [kill]
