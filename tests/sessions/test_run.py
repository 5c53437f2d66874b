"""`milligpu run` as people use it: the command's own exit, the share's end, the queue."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions.conftest import Machine, wait_for


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["/nonexistent/program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_the_exit_is_the_commands_own(machine: Machine, command: list[str], code: int) -> None:
    done = machine.run("run", "--", *command)
    assert done.returncode == code
    assert done.stderr.splitlines()[0] == "milligpu: this machine has no GPU; using a software GPU"


def test_a_shell_sees_128_and_the_signal(machine: Machine) -> None:
    script = f"{sys.executable.rsplit('/', 1)[0]}/milligpu run -- sh -c 'kill -9 $$'; exit $?"
    assert subprocess.run(["sh", "-c", script], env=machine.env, check=False, capture_output=True).returncode == 137


def test_the_command_keeps_its_standard_streams_and_working_directory(machine: Machine, tmp_path: Path) -> None:
    done = machine.run("run", "--", "sh", "-c", "cat; pwd; echo bad >&2", input="text\n", cwd=tmp_path)
    assert done.stdout == f"text\n{tmp_path}\n"
    assert done.stderr.endswith("bad\n")


def test_a_closed_pipe_ends_the_command_as_it_would_without_us(machine: Machine) -> None:
    done = machine.run("run", "--", "sh", "-c", "yes | head -1; kill -PIPE $$; echo alive")
    assert done.stdout == "y\n"
    assert done.returncode == -signal.SIGPIPE


SEEN = """
import ctypes, os
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
print([line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line][0])
"""


def test_a_whole_gpu_is_the_drivers_own_library(machine: Machine) -> None:
    done = machine.run("run", "--", sys.executable, "-c", SEEN)
    assert done.stdout.splitlines()[0] == "0 0 1"
    assert "/softgpu/" in done.stdout.splitlines()[1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_share_is_free_however_the_command_ends(machine: Machine, how: signal.Signals) -> None:
    process = machine.hold()
    process.send_signal(how)
    assert process.wait() == -how
    assert machine.run("run", "--timeout", "30", "--", "true").returncode == 0


def test_ctrl_c_while_waiting_leaves_the_queue(machine: Machine) -> None:
    machine.hold()
    waiting = machine.start("--", "true")
    wait_for("the queue", lambda: machine.ps()["waiting"])
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait() == 130
    wait_for("an empty queue", lambda: not machine.ps()["waiting"])


def test_no_wait_and_timeout_exit_with_75_and_name_the_holders(machine: Machine) -> None:
    machine.hold()
    for options in (["--no-wait"], ["--timeout", "0.2"]):
        done = machine.run("run", *options, "--", "true")
        assert done.returncode == 75
        assert "InsufficientGPUCore (best: GPU 0 has 0 of 1 GPU)" in done.stderr
        assert "(sleep 600)" in done.stderr


def test_queued_commands_are_served_in_order_and_know_their_place(machine: Machine) -> None:
    holder = machine.hold()
    first = machine.start("--", "sleep", "600")
    wait_for("the first", lambda: len(machine.ps()["waiting"]) == 1)
    second = machine.start("--", "sleep", "600")
    queue = wait_for("the second", lambda: found if len(found := machine.ps()["waiting"]) == 2 else None)
    assert [each["pid"] for each in queue] == [first.pid, second.pid]
    assert "(sleep 600)" in queue[1]["behind"][0]
    holder.kill()
    wait_for("the first to get it", lambda: [each["pid"] for each in machine.sessions()] == [first.pid])
    first.kill()
    wait_for("the second to get it", lambda: [each["pid"] for each in machine.sessions()] == [second.pid])


def test_a_higher_priority_is_served_first(machine: Machine) -> None:
    holder = machine.hold()
    low = machine.start("--", "sleep", "600")
    wait_for("the low one", lambda: len(machine.ps()["waiting"]) == 1)
    high = machine.start("--priority", "50", "--", "sleep", "600")
    wait_for("both", lambda: len(machine.ps()["waiting"]) == 2)
    holder.kill()
    wait_for("the high one to get it", lambda: [each["pid"] for each in machine.sessions()] == [high.pid])
    assert low.poll() is None


def test_what_never_fits_does_not_wait(machine: Machine) -> None:
    done = machine.run("run", "--gpus", "2", "--", "true")
    assert done.returncode == 75
    assert done.stderr.startswith(
        "error: no GPU on this machine can provide 2 whole GPUs, even when idle: InsufficientGPUs"
    )


def test_run_n_still_means_gpus(machine: Machine) -> None:
    done = machine.run("run", "-n", "2", "--no-wait", "--", "true")
    assert done.returncode == 75
    warning, error = done.stderr.splitlines()[:2]
    assert warning == "warning: run -n is deprecated: use run --gpus"
    assert error.startswith("error: no GPU on this machine can provide 2 whole GPUs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "0"], "-m: required: with -p 0 the memory follows from nothing"),
        (["-p", "0", "-m", "1Gi"], "--limit: required: with -p 0 no compute is guaranteed"),
        (["-p", "1.5"], "-p: invalid value '1.5': must be a fraction"),
        (["-p", "half"], "-p: invalid value 'half': must be a fraction"),
        (["-m", "0"], "-m: invalid value '0': must be a size"),
        (["-m", "4Gb"], "-m: invalid value '4Gb': must be a size"),
        (
            ["-p", "0.5", "--limit", "0.4"],
            "--limit: invalid value '0.4': must be a fraction from 0.5 to 1, because -p is 0.5",
        ),
        (["--gpus", "0"], "Invalid value for '--gpus'"),
        (["--policy", "fair"], "Invalid value for '--policy'"),
        (["--priority", "101"], "Invalid value for '--priority'"),
        (["--timeout", "-1"], "Invalid value for '--timeout'"),
    ],
)
def test_bad_input_is_refused_with_field_value_and_what_is_allowed(
    machine: Machine, options: list[str], message: str
) -> None:
    done = machine.run("run", *options, "--", "true")
    assert done.returncode == 2
    assert message in done.stderr


def test_a_process_that_outlives_its_command_on_the_gpu_is_ended(machine: Machine) -> None:
    """A share is free only when nobody is on the GPU any more."""
    code = (
        "import ctypes, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "cuda = ctypes.CDLL('libcuda.so.1'); assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0\n"
        "print('on', flush=True); time.sleep(600)"
    )
    process = machine.start("--", "sh", "-c", f'{sys.executable} -c "{code}" & echo $!; wait')
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert process.stdout.readline() == "on\n"
    process.kill()
    wait_for("the share", lambda: not machine.sessions())
    assert not Path(f"/proc/{pid}/maps").exists() or not Path(f"/proc/{pid}/maps").read_text()


def test_a_process_without_a_gpu_may_outlive_its_command(machine: Machine) -> None:
    process = machine.start("--", "sh", "-c", "sleep 600 & echo $!; exec sleep 600")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    wait_for("the share", lambda: not machine.sessions())
    os.kill(pid, signal.SIGKILL)
