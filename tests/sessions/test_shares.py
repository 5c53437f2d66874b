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

from milligpu.model.units import BYTES_PER_MIB
from tests.sessions.conftest import Machine, wait_for

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
        (["--gpus", "2", "-p", "0.5"], [2048, 2048]),
        (["-p", "1", "-m", "4Gi"], [4096]),
    ],
)
def test_a_program_sees_its_share_and_only_its_gpus(machine: Machine, options: list[str], total: list[int]) -> None:
    program = Program(machine, *options)
    assert program.sees["total"] == total
    uses = program.session(machine)["shares"]
    assert [each["mib"] for each in uses] == total
    assert [each["gpu"].removeprefix("GPU-").replace("-", "") for each in uses] == program.sees["uuid"]


def test_memory_alone_is_as_much_compute(machine: Machine) -> None:
    (use,) = Program(machine, "-m", "1Gi").session(machine)["shares"]
    assert (use["milli"], use["mib"]) == (250, 1024)


def test_the_cap_holds_and_ps_shows_what_is_used(machine: Machine) -> None:
    program = Program(machine, "-p", "0.25")
    assert program.allocate(800) == 0
    assert program.allocate(800) == OUT_OF_MEMORY
    (use,) = program.session(machine)["shares"]
    assert 800 <= use["memory_used"] / BYTES_PER_MIB <= 1024
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
    (use,) = program.session(machine)["shares"]
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
    (use,) = program.session(machine)["shares"]
    assert (use["milli"], use["mib"]) == (500, 3072)
    assert program.allocate(2500) == 0


def test_a_resize_beyond_what_is_free_changes_nothing(machine: Machine) -> None:
    first = Program(machine, "-p", "0.6")
    second = Program(machine, "-p", "0.4")
    assert first.sees["uuid"] == second.sees["uuid"]
    done = machine.run("resize", second.session(machine)["id"], "-p", "0.5")
    assert done.returncode == 75
    assert "InsufficientGPUCore (best: GPU 0 has 0.4 of 0.5 GPU)" in done.stderr
    assert second.session(machine)["shares"][0]["milli"] == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody", "-p", "0.5"], "session: invalid value 'nobody': must be the ID of one of your sessions"),
        (["", "-p", "0.5"], "session: invalid value '': must be the ID"),
        (["ID"], "set at least one of -p, -m and --limit"),
        (["ID", "-p", "2"], "-p: invalid value '2': must be a fraction"),
        (["ID", "-p", "1"], "must be a session with a share below a whole GPU"),
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
        r"error: no GPU has 0.2 GPU with 2Gi free now: InsufficientGPUMemory \(best: GPU \d has 1Gi of 2Gi\); try ",
        done.stderr,
    )


def test_a_released_share_goes_to_a_queued_command(machine: Machine) -> None:
    first, *_ = [machine.hold("-p", "0.6", "-m", "1Gi") for _ in range(2)]
    waiting = machine.start("-p", "0.5", "-m", "1Gi", "--", "sleep", "600")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    first.kill()
    wait_for("its turn", lambda: waiting.pid in [each["pid"] for each in machine.sessions()])


def test_top_shows_gpus_sessions_and_queued_commands(machine: Machine) -> None:
    for _ in range(2):
        machine.hold("-p", "0.6")
    machine.start("-p", "0.7", "--", "sleep", "600")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    done = machine.run("top", "--once")
    blocks = [block.splitlines() for block in done.stdout.split("\n\n")]
    assert [block[0].split()[0] for block in blocks] == ["GPU", "ID", "WAITING"]
    assert [len(block) for block in blocks[:2]] == [3, 3]
    who, *why = blocks[2][1:]
    assert who.endswith(": sleep 600")
    assert "InsufficientGPUCore (best: GPU 0 has 0.4 of 0.7 GPU)" in " ".join(line.strip() for line in why)
    state = json.loads(machine.run("top", "-o", "json").stdout)
    assert [card["free_milli"] for card in state["gpus"]] == [400, 400]
    listed = json.loads(machine.run("ps", "-o", "json").stdout)
    assert [each["pid"] for each in listed["sessions"]] == [each["pid"] for each in state["sessions"]]
    assert len(listed["waiting"]) == 1
    assert machine.run("ps", "-o", "name").stdout.split() == [each["id"] for each in state["sessions"]]


def test_top_sorts_and_shows_processes_as_its_options_say(machine: Machine) -> None:
    less = Program(machine, "-p", "0.25", "-m", "2Gi")
    more = Program(machine, "-p", "0.25", "-m", "2Gi")
    assert (less.allocate(100), more.allocate(900)) == (0, 0)
    ids = {name: program.session(machine)["id"] for name, program in (("less", less), ("more", more))}

    def order(*options: str) -> list[str]:
        words = machine.run("top", "--once", "--machine", *options).stdout.split()
        return sorted((name for name in ids), key=lambda name: words.index(ids[name]))

    assert order("--sort", "memory") == ["more", "less"]
    assert order() == order("--sort", "name") == ["less", "more"], "in the order in which they began"
    pid = str(more.session(machine)["pid"])
    shown = [machine.run("top", "--once", *options).stdout.split() for options in ((), ("--processes",))]
    assert [words.count(pid) for words in shown] == [1, 2], "the command, and the command with its process"


def test_resize_changes_the_limit_alone(machine: Machine) -> None:
    program = Program(machine, "-p", "0.25")
    assert machine.run("resize", program.session(machine)["id"], "--limit", "0.6").returncode == 0
    (use,) = program.session(machine)["shares"]
    assert (use["milli"], use["limit"]) == (250, 600)


@pytest.mark.parametrize(("policy", "limit"), [("fixed", 250), ("best-effort", 1000)])
def test_the_policy_of_a_command_decides_whether_it_gets_idle_time(
    machine: Machine, policy: str, limit: int
) -> None:
    (use,) = Program(machine, "-p", "0.25", "--policy", policy).session(machine)["shares"]
    assert (use["milli"], use["limit"]) == (250, limit)
