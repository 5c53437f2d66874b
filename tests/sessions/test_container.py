"""`milligpu run --cdi`: a container that no Kubernetes starts gets a share, holds it, and gives it back."""

import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster import images
from devcluster.report import to_stderr
from tests.sessions.conftest import ROOT, Machine, wait_for

KIND = "milligpu.dev/session"
# 0.3 of the memory fits, and not one more tenth.
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, block, free, total = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value >> 20, cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(total.value * 9 // 10)),
      cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(total.value // 2)))
"""


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    """A directory for CDI files."""
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


def take(machine: Machine, cdi: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Print a device; returns the session and what its CDI file changes about a container."""
    done = machine.run("run", "--cdi", "--cdi-dir", str(cdi), *arguments)
    assert done.returncode == 0, done.stderr
    kind, _, session = done.stdout.strip().partition("=")
    assert kind == KIND
    written = json.loads((cdi / f"milligpu-session-{session}.json").read_text())
    (device,) = written["devices"]
    assert (written["kind"], device["name"]) == (KIND, session)
    return session, device["containerEdits"]


def run_hook(edits: dict[str, Any], name: str) -> int:
    """What the runtime does at a point of the container's life."""
    (hook,) = [each for each in edits["hooks"] if each["hookName"] == name]
    return subprocess.run(hook["args"], executable=hook["path"], capture_output=True, check=False).returncode


def holder(machine: Machine, session: str) -> int:
    (found,) = [each["pid"] for each in machine.sessions() if each["id"] == session]
    return found


def test_a_device_holds_its_share_until_its_container_ends(machine: Machine, cdi: Path) -> None:
    session, edits = take(machine, cdi, "-p", "0.3")
    (held,) = machine.sessions()
    assert (held["id"], held["command"]) == (session, ["container"])
    assert f"MILLIGPU_SESSION={session}" in edits["env"]
    for mount in edits["mounts"]:
        assert Path(mount["hostPath"]).exists(), mount
    assert run_hook(edits, "createRuntime") == 0
    # A second container must not run on the share of the first.
    assert run_hook(edits, "createRuntime") != 0
    assert [each["id"] for each in machine.sessions()] == [session]
    assert run_hook(edits, "poststop") == 0
    wait_for("the share to be free", lambda: not machine.sessions())
    wait_for("the file to be gone", lambda: not list(cdi.iterdir()))


def test_a_whole_gpu_comes_without_the_limits_library(machine: Machine, cdi: Path) -> None:
    _, edits = take(machine, cdi)
    assert not [each for each in edits["mounts"] if "/enforce/" in each["hostPath"]]
    run_hook(edits, "poststop")
    wait_for("the GPU to be free", lambda: not machine.sessions())


def test_a_killed_holder_releases_its_share_and_the_next_device_removes_its_file(
    machine: Machine, cdi: Path
) -> None:
    session, _ = take(machine, cdi, "-p", "0.3")
    os.kill(holder(machine, session), signal.SIGKILL)
    wait_for("the share to be free", lambda: not machine.sessions())
    other, edits = take(machine, cdi, "-p", "0.3")
    assert [each.name for each in cdi.iterdir()] == [f"milligpu-session-{other}.json"]
    os.kill(holder(machine, other), signal.SIGTERM)
    wait_for("the file to be gone", lambda: not list(cdi.iterdir()))
    assert run_hook(edits, "createRuntime") != 0, "nobody holds the share any more"


def test_no_capacity_and_bad_directories_say_so(machine: Machine, cdi: Path) -> None:
    _, edits = take(machine, cdi, "-p", "0.8")
    refused = machine.run("run", "--cdi", "--cdi-dir", str(cdi), "--no-wait", "-p", "0.5")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "no GPU has 0.5 GPU free now" in refused.stderr
    run_hook(edits, "poststop")
    nowhere = machine.run("run", "--cdi", "--cdi-dir", str(cdi / "nowhere"), "-p", "0.5")
    assert nowhere.returncode == 125
    assert f"{cdi / 'nowhere'}: not a directory" in nowhere.stderr
    assert "takes no command" in machine.run("run", "--cdi", "-p", "0.5", "--", "true").stderr


@pytest.mark.long
@pytest.mark.alone
def test_podman_runs_a_container_with_a_share_that_is_held(machine: Machine, tmp_path: Path) -> None:
    if not shutil.which("podman"):
        subprocess.run([ROOT / "tools/need", "debian", "podman", "runc"], check=True)
    settings = tmp_path / "storage.conf"
    settings.write_text(f'[storage]\ndriver="vfs"\ngraphroot="{tmp_path}/graph"\nrunroot="{tmp_path}/run"\n')
    environment = {**machine.env, "CONTAINERS_STORAGE_CONF": str(settings)}

    def podman(*arguments: str) -> str:
        command = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    podman("load", "--quiet", "--input", str(images.archive(images.BASE, to_stderr)))
    # podman looks into this directory, and reads no other one.
    session, _ = take(machine, Path("/var/run/cdi"), "-p", "0.3")
    # Podman would raise these limits, which not every root may do.
    limits = [
        f"--ulimit={name}={soft}:{soft}"
        for name, soft in (("nofile", 1024), ("nproc", min(4096, resource.getrlimit(resource.RLIMIT_NPROC)[0])))
    ]
    device = f"--device={KIND}={session}"
    image = images.BASE.reference
    said = podman("run", "--rm", "--network=none", *limits, device, image, "python3", "-c", PROGRAM).split()
    assert said[1:] == ["0", "2"], "nine tenths of the share fit, and nothing beyond it"
    wait_for("the share to be free", lambda: not machine.sessions())
    assert not list(Path("/var/run/cdi").glob(f"*{session}*"))
