"""Shares below a whole GPU: what a program sees of one, what it gets, and what a resize changes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import Machine, wait_for

PROGRAM = str(Path(__file__).parent / "clients/memory.py")
OUT_OF_MEMORY = 2


class Program:
    """A CUDA program in a session, and what it says."""

    def __init__(self, machine: Machine, *options: str) -> None:
        self.process = machine.start(*options, "--", sys.executable, PROGRAM, stdin=subprocess.PIPE)
        self.sees = self._read()

    def allocate(self, mib: int) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mib}\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return json.loads(line)

    def session(self, machine: Machine) -> dict[str, Any]:
        return next(each for each in machine.sessions() if each["pid"] == self.process.pid)


@pytest.fixture(scope="module", autouse=True)
def two_cards(module_machine: Machine) -> None:
    assert module_machine.run("softgpu", "up", "--devices", "2", "--memory", "4Gi").returncode == 0


@pytest.mark.parametrize(
    ("options", "total"),
    [
        (["-p", "0.25"], [1024]),
        (["-m", "1Gi"], [1024]),
        (["-p", "0.1", "-m", "3Gi"], [3072]),
        (["-n", "2", "-p", "0.5"], [2048, 2048]),
        (["-p", "1", "-m", "4Gi"], [4096]),
    ],
)
def test_a_program_sees_its_share_and_only_its_gpus(machine: Machine, options: list[str], total: list[int]) -> None:
    program = Program(machine, *options)
    assert program.sees["total"] == total
    uses = program.session(machine)["uses"]
    assert [each["mib"] for each in uses] == total
    assert [each["gpu"].removeprefix("GPU-").replace("-", "") for each in uses] == program.sees["uuid"]


def test_memory_alone_is_as_much_compute(machine: Machine) -> None:
    (use,) = Program(machine, "-m", "1Gi").session(machine)["uses"]
    assert (use["milli"], use["mib"]) == (250, 1024)


def test_the_cap_holds_and_ps_shows_what_is_used(machine: Machine) -> None:
    program = Program(machine, "-p", "0.25")
    assert program.allocate(800) == 0
    assert program.allocate(800) == OUT_OF_MEMORY
    (use,) = program.session(machine)["uses"]
    assert 800 <= use["used_mib"] <= 1024
    assert use["refusals"] == 1


def test_a_larger_cap_helps_at_once_and_a_smaller_one_stops_new_allocations(machine: Machine) -> None:
    program = Program(machine, "-p", "0.25")
    assert program.allocate(1000) == OUT_OF_MEMORY
    session = program.session(machine)["id"]
    done = machine.run("resize", session, "-m", "2Gi")
    assert (done.returncode, done.stdout) == (0, f"{session}: 0.25 GPU -> 0.25 GPU with 2Gi\n")
    assert program.allocate(1000) == 0
    assert machine.run("resize", session[:4], "-m", "512Mi", "-p", "0.1").returncode == 0
    assert program.allocate(1) == OUT_OF_MEMORY
    (use,) = program.session(machine)["uses"]
    assert (use["milli"], use["mib"]) == (100, 512)


def test_a_cap_below_what_is_used_frees_only_what_is_not(machine: Machine) -> None:
    other = machine.hold("-p", "0.01", "-m", "4Gi")
    program = Program(machine, "-p", "0.5")
    assert program.allocate(1000) == 0
    assert machine.run("resize", program.session(machine)["id"], "-m", "512Mi").returncode == 0
    os.kill(machine.agents()[1], signal.SIGKILL)
    # 1000 MiB and a context are in use on the card of 4 GiB.
    assert machine.run("run", "--no-wait", "-p", "0.1", "-m", "3200Mi", "--", "true").returncode == 75
    assert machine.run("run", "--timeout", "30", "-p", "0.1", "-m", "2900Mi", "--", "true").returncode == 0
    assert other.poll() is None


def test_a_resize_survives_the_agent(machine: Machine) -> None:
    program = Program(machine, "-p", "0.25")
    session = program.session(machine)["id"]
    assert machine.run("resize", session, "-p", "0.5", "-m", "3Gi").returncode == 0
    os.kill(machine.agents()[1], signal.SIGKILL)
    (use,) = program.session(machine)["uses"]
    assert (use["milli"], use["mib"]) == (500, 3072)
    assert program.allocate(2500) == 0


def test_a_resize_beyond_what_is_free_changes_nothing(machine: Machine) -> None:
    first = Program(machine, "-p", "0.6")
    second = Program(machine, "-p", "0.4")
    assert first.sees["uuid"] == second.sees["uuid"]
    done = machine.run("resize", second.session(machine)["id"], "-p", "0.5")
    assert done.returncode == 75
    assert "InsufficientGPUCore (best: GPU/0 400 of 500)" in done.stderr
    assert second.session(machine)["uses"][0]["milli"] == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody", "-p", "0.5"], "session='nobody': want the ID of a session of yours"),
        (["", "-p", "0.5"], "session='': want the ID"),
        (["ID"], "resize='ID': want -p, -m or --limit"),
        (["ID", "-p", "2"], "-p='2': want a fraction"),
        (["ID", "-p", "1"], "want a session and a share below a whole GPU"),
    ],
)
def test_a_bad_resize_says_what_is_wrong(machine: Machine, arguments: list[str], message: str) -> None:
    holder = machine.hold("-p", "0.25")
    session = next(each["id"] for each in machine.sessions() if each["pid"] == holder.pid)
    done = machine.run("resize", *(session if argument == "ID" else argument for argument in arguments))
    assert done.returncode == 2
    assert message.replace("ID'", f"{session}'") in done.stderr


def test_a_whole_gpu_cannot_be_resized(machine: Machine) -> None:
    machine.hold()
    done = machine.run("resize", machine.sessions()[0]["id"], "-p", "0.5")
    assert done.returncode == 2


def test_memory_that_is_not_free_is_said_with_numbers_and_what_would_fit(machine: Machine) -> None:
    for _ in range(2):
        machine.hold("-p", "0.1", "-m", "3Gi")
    done = machine.run("run", "--no-wait", "-p", "0.2", "-m", "2Gi", "--", "true")
    assert done.returncode == 75
    assert re.match(
        r"error: 0.2 GPU with 2Gi is not free: InsufficientGPUMemory \(best: GPU/\d 1024 of 2048\); try 0.1 GPU",
        done.stderr,
    )


def test_what_frees_up_goes_to_who_waits(machine: Machine) -> None:
    first, *_ = [machine.hold("-p", "0.6", "-m", "1Gi") for _ in range(2)]
    waiting = machine.start("-p", "0.5", "-m", "1Gi", "--", "sleep", "600")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    first.kill()
    wait_for("its turn", lambda: waiting.pid in [each["pid"] for each in machine.sessions()])


def test_top_shows_gpus_sessions_and_who_waits(machine: Machine) -> None:
    for _ in range(2):
        machine.hold("-p", "0.6")
    machine.start("-p", "0.7", "--", "sleep", "600")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    done = machine.run("top", "--once")
    blocks = [block.splitlines() for block in done.stdout.split("\n\n")]
    assert [block[0].split()[0] for block in blocks] == ["GPU", "ID", "WAITING"]
    assert [len(block) for block in blocks] == [3, 3, 2]
    assert "InsufficientGPUCore (best: GPU/0 400 of 700)" in blocks[2][1]
    state = json.loads(machine.run("top", "-o", "json").stdout)
    assert [card["free_milli"] for card in state["gpus"]] == [400, 400]
    listed = json.loads(machine.run("ps", "-o", "json").stdout)
    assert [each["pid"] for each in listed["sessions"]] == [each["pid"] for each in state["sessions"]]
    assert len(listed["waiting"]) == 1
    assert machine.run("ps", "-o", "name").stdout.split() == [each["id"] for each in state["sessions"]]
