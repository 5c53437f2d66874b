"""Start, find and stop daemons, and make the environment that a client needs."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milligpu.model.errors import BadRequest, Unavailable
from milligpu.native import library
from milligpu.softgpu.names import CONTROL, PID_FILE, SOCKET_VARIABLE

# A daemon only has to close its sockets and remove its directory, which takes far less than this.
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SoftgpuPaths:
    """Directories for software GPUs on this machine."""

    folder: Path
    """Sockets of the GPUs that `milligpu softgpu up` starts."""
    cache: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "SoftgpuPaths":
        """Read the XDG variables; without a runtime directory, use one below /tmp."""
        runtime = env.get("XDG_RUNTIME_DIR") or f"/tmp/milligpu-{os.getuid()}"
        cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "/tmp"), ".cache"))
        return cls(Path(runtime, "milligpu", "softgpu"), Path(cache, "milligpu", "softgpu"))


@dataclass(frozen=True, slots=True)
class SoftgpuSpec:
    """Which GPUs to start."""

    devices: int | None
    model: str
    memory: int | None
    speed: float = 0.0
    """Speed of modeled time, as a multiple of the modeled GPU's speed; 0 is real time."""


def is_running(folder: Path) -> bool:
    """Whether a daemon answers there; leftover files of a killed daemon do not count."""
    try:
        read_state(folder)
    except Unavailable:
        return False
    return True


def start_daemon(folder: Path, cache: Path, fleet: SoftgpuSpec, *, watch: int | None = None) -> None:
    """Start the GPUs and return when they can be used; with `watch` they end with that process."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "milligpu.softgpu.daemon", str(folder), "--cache", str(cache)]
    command += ["--model", fleet.model]
    if fleet.devices is not None:
        command += ["--devices", str(fleet.devices)]
    if fleet.memory is not None:
        command += ["--memory", str(fleet.memory)]
    if fleet.speed:
        command += ["--speed", str(fleet.speed)]
    if watch is not None:
        command += ["--watch", str(watch)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        reason = (done.stderr.strip() or "no error message").splitlines()[-1]
        raise Unavailable(f"could not start the software GPUs: {reason}", hint="pip install 'milligpu[softgpu]'")


def client_environment(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a program finds our driver library and the GPUs in `folder`.

    Programs that compile CUDA C look for NVRTC in LD_LIBRARY_PATH and for its headers below CUDA_PATH. A machine
    without a GPU rarely has either, so parts of the CUDA toolkit that this Python has as wheels are added at the
    end.
    """
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    paths = [str(library("softgpu/libcuda.so.1").parent), env.get("LD_LIBRARY_PATH", "")]
    paths += [str(found.parent) for found in packages.glob("*/lib/libnvrtc.so.*")]
    result = {"LD_LIBRARY_PATH": ":".join(filter(None, dict.fromkeys(paths))), SOCKET_VARIABLE: str(folder)}
    for header in packages.glob("*/include/cuda_fp16.h"):
        result["CUDA_PATH"] = env.get("CUDA_PATH") or str(header.parents[1])
    return result


def read_state(folder: Path) -> list[dict[str, Any]]:
    """Read the state of the GPUs in `folder`."""
    return _ask(folder, b"")


def inject_fault(folder: Path, gpu: str, fault: Mapping[str, object]) -> None:
    """Inject a fault into a GPU, given by index or UUID."""
    answer: dict[str, Any] = _ask(folder, json.dumps({"gpu": gpu, **fault}).encode())
    if "error" in answer:
        raise BadRequest(*answer["error"])


def _ask(folder: Path, request: bytes) -> Any:
    parts: list[bytes] = []
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / CONTROL))
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                parts.append(part)
    except OSError:
        raise Unavailable(
            f"no software GPUs are running in {folder}", hint="start them with: milligpu softgpu up"
        ) from None
    return json.loads(b"".join(parts))


def stop_daemon(folder: Path) -> None:
    """Stop the GPUs in `folder`; their clients' calls then fail.

    Only a daemon that answers gets a signal, because the PID that a dead one left behind may belong to another
    process.
    """
    if not is_running(folder):
        found = folder.exists()
        shutil.rmtree(folder, ignore_errors=True)
        if not found:
            raise Unavailable(f"no software GPUs are running in {folder}")
        return
    pid = int((folder / PID_FILE).read_text())
    watched = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], _END_SECONDS)[0]:
            raise Unavailable(f"the software GPU daemon (process {pid}) does not stop", hint=f"kill -9 {pid}")
    finally:
        os.close(watched)
