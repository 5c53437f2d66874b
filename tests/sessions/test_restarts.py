"""The agent may be killed at any time: nothing is lost, nothing is granted twice, nobody need do anything."""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.sessions.conftest import PROGRAM, Machine, wait_for


def kill(machine: Machine, *, all_of_it: bool) -> None:
    """Kill the agent, with or without the process that would replace it."""
    before = machine.agents()
    assert len(before) == 2
    for pid in before if all_of_it else before[1:]:
        os.kill(pid, signal.SIGKILL)
    wait_for("its death", lambda: not set(before[0 if all_of_it else 1 :]) & set(machine.agents()))


def test_a_killed_agent_is_replaced_without_a_command_and_knows_its_sessions(machine: Machine) -> None:
    holder = machine.hold()
    kill(machine, all_of_it=False)
    wait_for("another agent", lambda: len(machine.agents()) == 2)
    assert [each["pid"] for each in machine.sessions()] == [holder.pid]
    assert machine.run("run", "--no-wait", "--", "true").returncode == 75


def test_a_session_that_ends_while_no_agent_is_there_is_freed_by_the_next(machine: Machine) -> None:
    holder = machine.hold()
    kill(machine, all_of_it=True)
    holder.kill()
    holder.wait()
    assert machine.run("run", "--timeout", "30", "--", "true").returncode == 0


def test_a_session_that_lives_on_while_no_agent_is_there_keeps_its_share(machine: Machine) -> None:
    holder = machine.hold()
    kill(machine, all_of_it=True)
    assert machine.run("run", "--no-wait", "--", "true").returncode == 75
    assert [each["pid"] for each in machine.sessions()] == [holder.pid]


def test_queued_commands_stay_queued_when_the_agent_is_killed(machine: Machine) -> None:
    holder = machine.hold()
    waiting = machine.start("--", "sleep", "600")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    for all_of_it in (False, True):
        kill(machine, all_of_it=all_of_it)
        wait_for("the queue again", lambda: [each["pid"] for each in machine.ps()["waiting"]] == [waiting.pid])
    holder.kill()
    wait_for("its turn", lambda: [each["pid"] for each in machine.sessions()] == [waiting.pid])


def test_a_number_that_another_process_has_now_is_not_the_session(machine: Machine) -> None:
    """After a reboot, or when numbers come round again, the record's process is somebody else."""
    machine.hold()
    (record,) = (machine.agent / "sessions").glob("*/session.json")
    found = json.loads(record.read_text())
    kill(machine, all_of_it=True)
    record.write_text(json.dumps({**found, "started": found["started"] - 1}))
    wait_for("the session's end", lambda: not machine.sessions())


def test_a_session_record_that_cannot_be_read_is_removed(machine: Machine) -> None:
    machine.hold()
    (record,) = (machine.agent / "sessions").glob("*/session.json")
    kill(machine, all_of_it=True)
    record.write_text("{")
    wait_for("the session's end", lambda: not machine.sessions() and not record.parent.exists())


def test_what_was_being_written_when_the_agent_died_is_removed(machine: Machine) -> None:
    machine.sessions()
    kill(machine, all_of_it=True)
    half = machine.agent / "sessions/.abc123"
    half.mkdir(parents=True)
    machine.sessions()
    wait_for("its end", lambda: not half.exists())


def test_one_service_starts_however_many_commands_start_it() -> None:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    try:
        commands = [
            subprocess.Popen([PROGRAM, "run", "-p", "0.1", "--", "true"], env=machine.env, stderr=subprocess.PIPE)
            for _ in range(4)
        ]
        for command in commands:
            command.communicate()
        assert [command.returncode for command in commands] == [0] * 4
        assert len(machine.agents()) == 2
    finally:
        machine.close()


def test_ps_and_top_start_neither_a_service_nor_a_software_gpu() -> None:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    try:
        assert machine.run("ps", "-o", "name").returncode == 0
        assert json.loads(machine.run("top", "-o", "json").stdout)["sessions"] == []
        assert not machine.agents()
        assert not (machine.folder / "milligpu/softgpu").exists()
    finally:
        machine.close()


def test_an_idle_agent_stops_and_takes_its_software_gpu_with_it() -> None:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    try:
        assert machine.run("run", "--", "true").returncode == 0
        assert (machine.folder / "milligpu/softgpu/gpu0.sock").exists()
        wait_for("the agent's end", lambda: not machine.agents())
        wait_for("the software GPU's end", lambda: not (machine.folder / "milligpu/softgpu").exists())
        assert not (machine.agent / "agent.sock").exists()
    finally:
        machine.close()


def test_software_gpus_that_another_process_started_are_used_and_kept_running(machine: Machine) -> None:
    machine.close()
    try:
        assert machine.run("softgpu", "up", "--devices", "2", "--memory", "1Gi").returncode == 0
        state = json.loads(machine.run("top", "-o", "json").stdout)
        assert [gpu["mib"] for gpu in state["gpus"]] == [1024, 1024]
        assert machine.run("run", "--", "true").returncode == 0
        os.kill(machine.agents()[0], signal.SIGTERM)
        wait_for("the agent's end", lambda: not machine.agents())
        assert machine.run("softgpu", "status").returncode == 0
    finally:
        machine.run("softgpu", "down")
