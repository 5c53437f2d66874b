"""Idle time of a GPU in modeled time: sessions get it up to their limits, and lose it to shares."""

import subprocess
from typing import Any

import pytest

from milligpu.native import library
from tests.sessions.conftest import Machine, wait_for

pytestmark = pytest.mark.alone

# Each of these is alone on its GPU, because two of them would need more memory than a GPU has.
ALONE = {
    "share": ("-p", "0.2", "-m", "3Gi"),
    "limit": ("-p", "0.2", "--limit", "1", "-m", "3Gi"),
    "idle": ("-p", "0", "--limit", "0.5", "-m", "3Gi"),
}
SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module", autouse=True)
def three_gpus(module_machine: Machine) -> None:
    up = module_machine.run("softgpu", "up", "--devices", "3", "--memory", "4Gi", "--speed", "1")
    assert up.returncode == 0, up.stderr


def busy(machine: Machine, *options: str) -> int:
    """Start a program that always has work for the GPU; returns its process ID."""
    load = [str(library("milligpu-load")), "train", "kernel=5000"]
    program = machine.start(*options, "--", *load, stdin=subprocess.PIPE)
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    return program.pid


def use(machine: Machine, pid: int) -> dict[str, Any]:
    shares = {each["pid"]: each["shares"][0] for each in machine.sessions() if each["shares"]}
    return shares.get(pid, {"gpu": None, "gpu_time_ns": 0})


def against(machine: Machine, pids: dict[str, int], base: str) -> dict[str, float]:
    """The GPU time of each program, where 1 is that of `base`, while `base` gets a second of its GPU."""

    def times() -> dict[str, int]:
        return {name: use(machine, pid)["gpu_time_ns"] or 0 for name, pid in pids.items()}

    wait_for("all programs to compute", lambda: all(times().values()))
    before = times()

    def passed() -> dict[str, int] | None:
        now = times()
        return now if now[base] - before[base] > SECOND_NS else None

    after = wait_for("a second of GPU time", passed)
    return {name: (after[name] - before[name]) / (after[base] - before[base]) for name in pids}


def test_a_session_gets_idle_time_up_to_its_limit_and_none_while_a_share_needs_the_gpu(machine: Machine) -> None:
    pids = {name: busy(machine, *options) for name, options in ALONE.items()}
    got = against(machine, pids, "share")
    assert len({use(machine, pid)["gpu"] for pid in pids.values()}) == len(ALONE)
    assert got["limit"] > 2.5, "alone with the limit 1, it may have 5 times its share"
    assert 1.5 < got["idle"] < 3.5, "without a share and with the limit 0.5, 2.5 times a share of 0.2"

    pids["whole"] = busy(machine, "-p", "1", "-m", "1Gi")
    got = against(machine, pids, "share")
    assert use(machine, pids["whole"])["gpu"] == use(machine, pids["idle"])["gpu"]
    assert got["idle"] < 0.25 * got["whole"], "a share comes before idle time"
