"""The audit on a living machine: whoever walks around the limits is found, and ended where that was asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import Machine, wait_for

ROGUE = str(Path(__file__).parent / "clients/rogue.py")


@pytest.fixture(scope="module", autouse=True)
def one_card(module_machine: Machine) -> None:
    assert module_machine.run("softgpu", "up", "--memory", "4Gi").returncode == 0


def rogue(machine: Machine, how: str) -> subprocess.Popen[str]:
    process = machine.start("-p", "0.25", "--", sys.executable, ROGUE, how)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
    return process


def found(machine: Machine, offence: str) -> dict[str, object] | None:
    return next((each for each in machine.ps()["outside"] if each["offence"] == offence), None)


def test_a_program_that_opens_the_real_driver_is_found(machine: Machine) -> None:
    process = rogue(machine, "around")
    finding = wait_for("the finding", lambda: found(machine, "around-the-limits"))
    assert finding["pid"] == process.pid
    over = wait_for("its memory", lambda: found(machine, "over-memory"))
    assert over["detail"] == "the driver counts 2176 MiB, the cap is 1024 MiB"
    assert "around-the-limits" in machine.run("top", "--once").stdout
    assert process.poll() is None


def test_a_program_that_clears_its_account_is_found(machine: Machine) -> None:
    rogue(machine, "spoil")
    finding = wait_for("the finding", lambda: found(machine, "spoilt-account"))
    assert finding["detail"] == "the driver counts 640 MiB, the account says 0 MiB"


def test_a_program_beside_all_sessions_is_a_stranger(machine: Machine) -> None:
    machine.hold("-p", "0.25")
    exports = machine.run("softgpu", "env").stdout
    code = "import ctypes, time; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0)\n"
    code += "c.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0); time.sleep(600)"
    command = f'{exports}\nexec {sys.executable} -c "{code}"'
    stranger = subprocess.Popen(["sh", "-c", command], env=machine.env)
    try:
        finding = wait_for("the finding", lambda: found(machine, "stranger"))
        assert finding["pid"] == stranger.pid
    finally:
        stranger.kill()
        stranger.wait()


def test_those_within_their_share_are_not_found(machine: Machine) -> None:
    program = str(Path(__file__).parent / "clients/memory.py")
    honest = machine.start("-p", "0.25", "--", sys.executable, program, stdin=subprocess.PIPE)
    assert honest.stdout is not None
    honest.stdout.readline()
    rogue(machine, "around")
    wait_for("the other's finding", lambda: found(machine, "around-the-limits"))
    assert honest.pid not in [each["pid"] for each in machine.ps()["outside"]]
    sessions = {each["pid"]: each["id"] for each in machine.sessions()}
    assert sessions[honest.pid] not in [each["session"] for each in machine.ps()["outside"]]


def test_an_agent_that_was_told_to_ends_who_is_outside(machine: Machine) -> None:
    os.kill(machine.agents()[0], signal.SIGTERM)
    wait_for("the agent's end", lambda: not machine.agents())
    command = [sys.executable, "-m", "milligpu.agent", str(machine.agent), "--idle", "10", "--kill"]
    subprocess.run(command, env=machine.env, check=True)
    honest = machine.hold("-p", "0.25")
    process = rogue(machine, "around")
    assert process.wait(60) == -signal.SIGKILL
    wait_for("its share", lambda: [each["pid"] for each in machine.sessions()] == [honest.pid])
