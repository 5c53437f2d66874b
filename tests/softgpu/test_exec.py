"""The command line of the software GPU: exit codes, signals, and nothing left running."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.softgpu.conftest import PROGRAM, Softgpu

# Prints the directory of its GPUs, whether CUDA finds one, and how much memory it sees.
PROBE = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
status, free, total = cuda.cuInit(0), ctypes.c_size_t(), ctypes.c_size_t()
if not status:
    context = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(os.environ.get("MILLIGPU_SOFTGPU"), status, free.value, total.value, flush=True)
"""
NO_DEVICE = 100
# Far longer than any step here takes; a test that waits this long fails.
PATIENCE = 30.0


def gone(path: Path) -> bool:
    """Wait until a directory is removed."""
    deadline = time.monotonic() + PATIENCE
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not path.exists()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_exec_gives_a_command_gpus_that_end_with_it(softgpu: Softgpu) -> None:
    done = softgpu("exec", "--memory", "1Gi", "--", *python(PROBE))
    folder, status, free, total = done.stdout.split()
    assert (status, int(total)) == ("0", 1 << 30)
    assert int(free) < int(total)
    assert gone(Path(folder))


def test_exec_returns_the_commands_exit_code(softgpu: Softgpu) -> None:
    assert softgpu("exec", "--", "sh", "-c", "exit 42").returncode == 42
    assert softgpu("exec", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_exec_reports_a_command_that_does_not_exist(softgpu: Softgpu) -> None:
    done = softgpu("exec", "--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_a_killed_command_leaves_no_daemon_behind(softgpu: Softgpu) -> None:
    code = PROBE + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = softgpu("exec", "--", *python(code))
    assert done.returncode == -signal.SIGKILL
    assert gone(Path(done.stdout.split()[0]))


def test_the_driver_without_a_socket_reports_no_device(softgpu: Softgpu) -> None:
    code = "import os; os.environ['MILLIGPU_SOFTGPU'] = '/nowhere'\n" + PROBE
    assert softgpu("exec", "--", *python(code)).stdout.split()[1] == str(NO_DEVICE)


def test_cuda_visible_devices_selects_by_index_and_uuid(softgpu: Softgpu) -> None:
    count = """
import ctypes, os, sys
cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
status = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(number))
bus = [ctypes.create_string_buffer(20) for _ in range(number.value)]
for at, each in enumerate(bus): cuda.cuDeviceGetPCIBusId(each, 20, at)
print(status, *[each.value.decode() for each in bus])
"""
    command = ["exec", "--devices", "3", "--", *python(count)]
    assert softgpu(*command).stdout.split()[1:] == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    chosen = softgpu(*command, env={"CUDA_VISIBLE_DEVICES": "2,0"}).stdout.split()
    assert chosen == ["0", "0000:03:00.0", "0000:01:00.0"]
    cut = softgpu(*command, env={"CUDA_VISIBLE_DEVICES": "1,7,0"}).stdout.split()
    assert cut == ["0", "0000:02:00.0"]
    assert softgpu(*command, env={"CUDA_VISIBLE_DEVICES": ""}).stdout.split() == [str(NO_DEVICE)]


def test_invalid_options_are_refused_before_a_daemon_starts(softgpu: Softgpu) -> None:
    for options in (["--memory", "lots"], ["--model", "A1000"], ["--devices", "0"]):
        done = softgpu("exec", *options, "--", "true")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: ")


def test_up_status_env_and_down_manage_one_daemon(softgpu: Softgpu) -> None:
    assert softgpu("status").returncode == 125
    assert softgpu("up", "--devices", "2", "--memory", "1Gi", "--model", "t4").returncode == 0
    try:
        assert softgpu("up").returncode == 2
        exports = dict(line.removeprefix("export ").split("=", 1) for line in softgpu("env").stdout.splitlines())
        environment = {**os.environ, **{name: value.strip("'") for name, value in exports.items()}}
        with subprocess.Popen(
            python(PROBE + "input()"), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().split()[1] == "0"
            gpus = json.loads(softgpu("status", "-o", "json").stdout)
            assert [gpu["name"] for gpu in gpus] == ["Tesla T4", "Tesla T4"]
            assert [[each["pid"] for each in gpu["processes"]] for gpu in gpus] == [[process.pid]] * 2
            assert gpus[0]["used"] > 0
            process.kill()
        # The kernel closes a dead process's sockets before its parent learns of the death.
        assert all(
            gpu["used"] == 0 and not gpu["processes"] for gpu in json.loads(softgpu("status", "-o", "json").stdout)
        )
    finally:
        assert softgpu("down").returncode == 0
    assert softgpu("status").returncode == 125


def test_up_starts_despite_the_sockets_of_a_killed_daemon(softgpu: Softgpu) -> None:
    assert softgpu("up").returncode == 0
    exports = softgpu("env").stdout
    folder = Path(next(line for line in exports.splitlines() if "MILLIGPU_SOFTGPU" in line).split("'")[1])
    os.kill(int((folder / "daemon.pid").read_text()), signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while softgpu("status").returncode == 0 and time.monotonic() < deadline:
        pass
    assert folder.exists()
    assert softgpu("up").returncode == 0
    assert softgpu("down").returncode == 0
    assert not folder.exists()
    assert softgpu("down").returncode == 125


def test_a_clients_calls_fail_when_the_daemon_dies(softgpu: Softgpu) -> None:
    code = (
        PROBE
        + """
import pathlib, signal, time
pid = int(pathlib.Path(os.environ["MILLIGPU_SOFTGPU"], "daemon.pid").read_text())
os.kill(pid, signal.SIGKILL)
pointer = ctypes.c_uint64()
print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), 4096), cuda.cuMemAlloc_v2(ctypes.byref(pointer), 4096), end=" ")
deadline = time.monotonic() + 60
while not (status := cuda.cuCtxSynchronize()) and time.monotonic() < deadline:
    pass
print(status)
"""
    )
    done = softgpu("exec", "--", *python(code))
    folder = Path(done.stdout.split()[0])
    assert done.stdout.splitlines()[-1] == "46 46 46"
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def test_a_forked_child_cannot_use_cuda_and_holds_no_gpu_memory(softgpu: Softgpu) -> None:
    code = (
        PROBE
        + """
pid = os.fork()
if pid == 0:
    os._exit(cuda.cuCtxSynchronize())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), cuda.cuCtxSynchronize())
"""
    )
    assert softgpu("exec", "--", *python(code)).stdout.splitlines()[-1] == "3 0"


def test_coverage_lists_every_symbol_that_the_library_exports(softgpu: Softgpu) -> None:
    listed = json.loads(softgpu("coverage", "-o", "json").stdout)["symbols"]
    library = softgpu("exec", "--", *python("import ctypes; c = ctypes.CDLL('libcuda.so.1'); print(c._name)"))
    assert library.stdout.strip() == "libcuda.so.1"
    missing = json.loads(softgpu("coverage", "--missing", "-o", "json").stdout)["symbols"]
    assert set(missing.values()) == {"missing"}
    assert listed["cuLaunchKernel"] == "implemented"
    assert json.loads(softgpu("coverage", "--nvml", "-o", "json").stdout)["symbols"]["nvmlInit_v2"] == "implemented"
    assert listed["cuLaunchKernel_ptsz"] == "variant"
    code = "import ctypes, sys; c = ctypes.CDLL('libcuda.so.1'); [c[name] for name in sys.stdin.read().split()]"
    assert softgpu("exec", "--", *python(code), input=" ".join(listed)).returncode == 0


@pytest.mark.parametrize(
    ("name", "release", "flags", "symbol"),
    [
        ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuInit", 12000, 2, "cuInit"),
        ("cuCheckpointProcessLock", 12000, 0, "version"),
        ("cuNothing", 12000, 0, "unknown"),
    ],
)
def test_entry_points_are_found_by_name_version_and_stream_mode(
    softgpu: Softgpu, name: str, release: int, flags: int, symbol: str
) -> None:
    code = f"""
import ctypes
cuda, found, how = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
cuda.cuGetProcAddress_v2(b"{name}", ctypes.byref(found), {release}, ctypes.c_uint64({flags}), ctypes.byref(how))
special = {{"version": 2, "unknown": 1}}
if "{symbol}" in special:
    assert not found.value and how.value == special["{symbol}"], (found, how)
else:
    assert found.value == ctypes.cast(cuda["{symbol}"], ctypes.c_void_p).value and how.value == 0, (found, how)
"""
    from milligpu.native import library  # noqa: PLC0415

    environment = {**os.environ, "LD_LIBRARY_PATH": str(library("softgpu/libcuda.so.1").parent)}
    subprocess.run(python(code), env=environment, check=True)


def test_help_lists_the_subcommands() -> None:
    done = subprocess.run([PROGRAM, "softgpu", "--help"], capture_output=True, text=True, check=True)
    for word in ("up", "down", "status", "exec", "env", "coverage"):
        assert f"  {word}" in done.stdout
