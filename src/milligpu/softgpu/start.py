"""Starting and finding daemons, and what a client needs in its environment."""

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

# A daemon that was told to end closes sockets and removes a folder: far less than this.
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on this machine."""

    folder: Path
    """Of the cards that `up` starts."""
    cache: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Places":
        """By the usual variables; a folder of our own below /tmp where there is no runtime folder."""
        runtime = env.get("XDG_RUNTIME_DIR") or f"/tmp/milligpu-{os.getuid()}"
        cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "/tmp"), ".cache"))
        return cls(Path(runtime, "milligpu", "softgpu"), Path(cache, "milligpu", "softgpu"))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What cards to start."""

    devices: int | None
    model: str
    memory: int | None
    speed: float = 0.0
    """Of modelled time, as a multiple of the card's own; 0 is real time."""


def is_running(folder: Path) -> bool:
    """Whether somebody answers there; what a daemon that was killed left behind does not count."""
    try:
        read_state(folder)
    except Unavailable:
        return False
    return True


def start_daemon(folder: Path, cache: Path, fleet: Fleet, *, watch: int | None = None) -> None:
    """Start the cards and return when they can be used; with `watch` they end with that process."""
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
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise Unavailable(f"the software GPU did not start: {reason}", hint="pip install 'milligpu[softgpu]'")


def client_environment(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """What makes a program find our driver library and the cards in `folder`.

    Behind everything else comes what this Python has of the CUDA toolkit as wheels: programs that compile CUDA C
    look for NVRTC on the same path and for its headers below CUDA_PATH, and a machine without a GPU rarely has
    either.
    """
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    paths = [str(library("softgpu/libcuda.so.1").parent), env.get("LD_LIBRARY_PATH", "")]
    paths += [str(found.parent) for found in packages.glob("*/lib/libnvrtc.so.*")]
    result = {"LD_LIBRARY_PATH": ":".join(filter(None, dict.fromkeys(paths))), SOCKET_VARIABLE: str(folder)}
    for header in packages.glob("*/include/cuda_fp16.h"):
        result["CUDA_PATH"] = env.get("CUDA_PATH") or str(header.parents[1])
    return result


def read_state(folder: Path) -> list[dict[str, Any]]:
    """How the cards in `folder` stand."""
    return _ask(folder, b"")


def inject_fault(folder: Path, gpu: str, fault: Mapping[str, object]) -> None:
    """Let something befall a card, by its number or UUID."""
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
        raise Unavailable(f"no software GPU in {folder}", hint="start one with: milligpu softgpu up") from None
    return json.loads(b"".join(parts))


def stop_daemon(folder: Path) -> None:
    """End the cards in `folder`; clients see a card that no longer answers.

    Only a daemon that answers is signalled: the number that a dead one left may by now be another process's.
    """
    if not is_running(folder):
        found = folder.exists()
        shutil.rmtree(folder, ignore_errors=True)
        if not found:
            raise Unavailable(f"no software GPU in {folder}")
        return
    pid = int((folder / PID_FILE).read_text())
    watched = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], _END_SECONDS)[0]:
            raise Unavailable(f"the software GPU (process {pid}) does not end", hint=f"kill -9 {pid}")
    finally:
        os.close(watched)
