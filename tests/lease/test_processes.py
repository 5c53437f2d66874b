"""Leases among real processes on a software GPU in modeled time, and what happens when one is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from milligpu.measure.share_windows import used_percent
from milligpu.measure.testbed import Testbed, compute_share, open_testbed
from milligpu.model.policy import SharePolicy

pytestmark = pytest.mark.alone

CLIENTS = Path(__file__).parent / "clients"
TRAIN = ("train", "kernel=1000")
WAIT_SECONDS = 60.0


@pytest.fixture
def scene() -> Iterator[Testbed]:
    with open_testbed() as found:
        yield found


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a client of these tests; all are killed at the end, with their children."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(CLIENTS / name), *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Spawn = Callable[..., subprocess.Popen[str]]


def measure(scene: Testbed, pids: Sequence[int], seconds: float) -> list[float]:
    """Each process's share of the GPU's time from now on, in percent."""
    first = scene.sample(time.monotonic_ns)
    time.sleep(seconds)
    last = scene.sample(time.monotonic_ns)
    return [used_percent(first, last, [pid]) for pid in pids]


def wait_for_share(scene: Testbed, pid: int, what: Callable[[float], bool]) -> None:
    """Wait until `what` holds for the process's share of GPU time, measured over half a second."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not what(found := measure(scene, [pid], 0.5)[0]):
        assert time.monotonic() < deadline, f"{found:.1f} % for too long"


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = process.stdout.readline()
    assert found, f"{process.args} ended"
    return found.strip()


def test_tenants_of_a_killed_arbiter_run_in_their_time_slots_until_the_next_arbiter(
    scene: Testbed, spawn: Spawn
) -> None:
    scene.tenants((compute_share(300), compute_share(700)))
    folders = [str(scene.folder(tenant)) for tenant in range(2)]
    scene.arbiter.close()
    arbiter = spawn("arbiter.py", *folders)
    assert line(arbiter) == "ready"
    pid = scene.start(0, *TRAIN).pid
    scene.begin()
    wait_for_share(scene, pid, lambda percent: percent > 60)  # any tenant may use idle time

    arbiter.kill()
    arbiter.wait()
    wait_for_share(scene, pid, lambda percent: percent < 40)
    (alone,) = measure(scene, [pid], 3)
    # Never more than its time slot, except for one kernel at its end; a busy machine may make it less.
    assert 3 < alone < 33

    assert line(spawn("arbiter.py", *folders)) == "ready"
    wait_for_share(scene, pid, lambda percent: percent > 60)


def test_a_tenant_keeps_to_its_time_slot_when_the_arbiter_is_killed(scene: Testbed, spawn: Spawn) -> None:
    scene.tenants((compute_share(300), compute_share(500)))
    scene.arbiter.close()
    arbiter = spawn("arbiter.py", *(str(scene.folder(tenant)) for tenant in range(2)))
    assert line(arbiter) == "ready"
    pids = [scene.start(tenant, *TRAIN).pid for tenant in range(2)]
    scene.begin()
    wait_for_share(scene, pids[0], lambda percent: percent > 10)
    arbiter.kill()
    arbiter.wait()
    # Together they used the whole GPU; time slots leave a fifth of it unassigned.
    wait_for_share(scene, pids[1], lambda percent: percent < 55)
    first, second = measure(scene, pids, 3)
    assert 3 < first < 33
    assert 5 < second < 53


def test_a_killed_lease_holder_frees_the_gpu_for_others(scene: Testbed) -> None:
    scene.tenants((compute_share(500), compute_share(500)))
    # Its kernels are longer than a turn, so it cannot hand over before one ends.
    holder = scene.start(0, "train", "kernel=60000")
    other = scene.start(1, *TRAIN)
    scene.begin()
    wait_for_share(scene, other.pid, lambda percent: percent > 5)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        assert time.monotonic() < deadline, "it never held the lease"
        if scene.account(0).holding:
            os.kill(holder.pid, signal.SIGSTOP)
            if scene.account(0).holding:
                break
            os.kill(holder.pid, signal.SIGCONT)
        time.sleep(0.001)
    holder.kill()
    wait_for_share(scene, other.pid, lambda percent: percent > 70)
    account = scene.account(0)
    # Because of its death, not because of a deadline.
    assert (account.wanting, account.holding, account.suspect) == (0, False, False)


def test_a_forked_process_of_a_tenant_shares_its_lease(scene: Testbed, spawn: Spawn) -> None:
    scene.tenants((compute_share(500), compute_share(500)))
    other = scene.start(1, *TRAIN).pid
    twins = spawn("twins.py", env=scene.environment(0))
    pids = [int(line(twins)) for _ in range(2)]
    assert twins.pid in pids
    scene.begin()
    for pid in (*pids, other):
        wait_for_share(scene, pid, lambda percent: percent > 3)
    assert scene.account(0).wanting == 2
    parent, child, beside = measure(scene, [*pids, other], 3)
    # If each process had a lease of its own, the two would get two thirds.
    assert 40 < 100 * (parent + child) / (parent + child + beside) < 60
    assert min(parent, child) > 3


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(("train", "kernel=300000"), id="a first kernel of unknown length"),
        pytest.param(("train", "kernel=3000", "graph=100"), id="a graph of unknown length"),
        pytest.param(("train", "kernel=50", "after=500", "then=300000"), id="kernels that suddenly take longer"),
    ],
)
@pytest.mark.parametrize("processes", [1, 3])
def test_work_of_unknown_length_is_charged_in_full(scene: Testbed, load: tuple[str, ...], processes: int) -> None:
    scene.tenants((compute_share(200), compute_share(800)))
    mine = [scene.start(0, *load).pid for _ in range(processes)]
    scene.start(1, *TRAIN)
    scene.begin()
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        busy = scene.sample(time.monotonic_ns).busy
        charged = scene.account(0).charged_ns
        used = sum(busy.get(pid, 0) for pid in mine)
        if used > 900_000_000 * processes:
            break
        assert time.monotonic() < deadline, f"only {used} ns of GPU time"
        time.sleep(0.05)
    scene.kill()
    # Otherwise its queue would run next to the others without being charged.
    assert charged > 0.8 * used


def test_a_new_share_applies_to_running_programs(scene: Testbed) -> None:
    scene.tenants((compute_share(800), compute_share(200)))
    pids = [scene.start(tenant, *TRAIN).pid for tenant in range(2)]
    scene.begin()
    wait_for_share(scene, pids[0], lambda percent: percent > 60)
    for tenant, milli in enumerate((200, 800)):
        scene.resize(tenant, milli)
    # Measured over half a second that begins after the change; without arbitration both would get half.
    wait_for_share(scene, pids[0], lambda percent: percent < 30)
    wait_for_share(scene, pids[1], lambda percent: percent > 60)


@pytest.mark.parametrize("library", ["cuda-bindings", "numba", "tinygrad"])
def test_launches_through_cuda_libraries_are_charged_and_shared(scene: Testbed, spawn: Spawn, library: str) -> None:
    scene.tenants((compute_share(300, limit=300), compute_share(700)), policy=SharePolicy.FIXED)
    pid = int(line(spawn("loops.py", library, env=scene.environment(0))))
    other = scene.start(1, *TRAIN).pid
    scene.begin()
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := scene.sample(time.monotonic_ns)).busy.get(pid, 0) < 300_000_000:
        if library == "tinygrad" and found.busy.get(pid, 0) > 3_000_000:
            break  # its kernels take more CPU time than GPU time
        assert time.monotonic() < deadline, f"{found.busy} ns"
        time.sleep(0.05)
    (measured,) = measure(scene, [pid], 2)
    assert measured < 33, "its fixed share is also its limit"
    busy = scene.sample(time.monotonic_ns).busy
    assert scene.account(0).charged_ns > 0.8 * busy[pid]
    assert busy[other] > 0
