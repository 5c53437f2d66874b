"""GPUs that become unhealthy while commands use them, and commands that only look."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from milligpu.softgpu.start import SoftgpuPaths, is_running
from tests.sessions.conftest import Machine, wait_for


@pytest.fixture
def two_gpus() -> Iterator[Machine]:
    """A machine of its own with two GPUs of 40 GiB."""
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    assert machine.run("softgpu", "up", "--model", "A100-40GBx2").returncode == 0
    yield machine
    machine.close()


def states(machine: Machine) -> list[tuple[str, str]]:
    return [(gpu["state"], gpu["message"]) for gpu in machine.ps()["gpus"]]


LOST = ("unhealthy", "XID 79: GPU has fallen off the bus")


def test_a_gpu_that_was_unhealthy_before_gets_no_session(two_gpus: Machine) -> None:
    for gpu in ("0", "1"):
        assert two_gpus.run("softgpu", "fault", gpu, "--xid", "79").returncode == 0
    assert two_gpus.run("top", "--once").stdout.count("unhealthy") >= 2
    refused = two_gpus.run("run", "-p", "0.5", "--", "true")
    assert refused.returncode == 75
    assert "no GPU on this machine can provide 0.5 GPU now: Unhealthy (GPU 0: " in refused.stderr


def test_sessions_keep_an_unhealthy_gpu_and_others_wait_or_are_refused(two_gpus: Machine) -> None:
    two_gpus.hold("-p", "0.6", "-m", "8Gi")
    (holder,) = two_gpus.sessions()
    on = [gpu["uuid"] for gpu in two_gpus.ps()["gpus"]].index(holder["shares"][0]["gpu"])
    two_gpus.hold("-p", "0.6", "-m", "8Gi")
    waiting = two_gpus.start("-p", "0.5", "-m", "1Gi", "--", "sleep", "600")
    wait_for("the queue", lambda: two_gpus.ps()["waiting"])

    for gpu in ("0", "1"):
        assert two_gpus.run("softgpu", "fault", gpu, "--xid", "79").returncode == 0
    wait_for("both GPUs to be unhealthy", lambda: states(two_gpus) == [LOST, LOST])
    assert len(two_gpus.sessions()) == 2
    wait_for("the reason", lambda: "Unhealthy (GPU 0: XID 79" in two_gpus.ps()["waiting"][0]["message"])
    refused = two_gpus.run("run", "--no-wait", "-p", "0.1", "--", "true")
    assert refused.returncode == 75
    assert "Unhealthy (GPU 0: XID 79: GPU has fallen off the bus)" in refused.stderr
    listed = two_gpus.run("gpu", "list", "-o", "json")
    assert [gpu["reason"] for gpu in json.loads(listed.stdout)] == [LOST[1], LOST[1]]
    assert f"{on} unhealthy" in two_gpus.run("ps").stdout
    smaller = two_gpus.run("resize", holder["id"], "-p", "0.3", "-m", "4Gi")
    assert smaller.returncode == 0, smaller.stderr
    larger = two_gpus.run("resize", holder["id"], "-p", "0.7")
    assert larger.returncode == 75
    assert f"Unhealthy (GPU {on}: XID 79" in larger.stderr

    assert two_gpus.run("softgpu", "fault", str(on), "--clear").returncode == 0
    wait_for("the share", lambda: waiting.pid in [each["pid"] for each in two_gpus.sessions()])


def test_a_resize_that_can_never_fit_says_so(two_gpus: Machine) -> None:
    two_gpus.hold("-p", "0.5", "-m", "8Gi")
    (holder,) = two_gpus.sessions()
    refused = two_gpus.run("resize", holder["id"], "-m", "80Gi")
    assert refused.returncode == 75
    assert "even when idle: LargerThanGPU (best: GPU 0 has 40Gi of 80Gi); try 0.5 GPU with 40Gi" in refused.stderr
    assert refused.stderr.endswith("hint: waiting will not help\n")


def test_commands_that_only_look_start_nothing() -> None:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    folder = SoftgpuPaths.from_env(machine.env).folder
    try:
        for command in (["ps"], ["top", "--once"], ["ps", "-o", "json"], ["gpu", "list"]):
            machine.run(*command)
            assert not is_running(folder), command
            assert machine.agents() == [], command
        assert machine.run("softgpu", "up", "--devices", "2").returncode == 0
        listed = machine.run("gpu", "list", "-o", "name")
        assert listed.stdout.count("GPU-") == 2, listed.stderr
        assert machine.agents() == []
    finally:
        machine.close()
