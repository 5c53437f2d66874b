"""The machine: its GPUs, real or software, what a report says about it, and what it must not say."""

import getpass
import os
import platform
import re
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from milligpu.model.errors import Unavailable
from milligpu.native import library
from milligpu.nvml.gpus import NvmlGpus
from milligpu.sessions.gpu_source import open_nvml
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import SoftgpuPaths, SoftgpuSpec, is_running, start_daemon, stop_daemon
from milligpu.tenancy.processes import memory_maps
from milligpu.tenancy.tenant import NVML
from milligpu.verify.privacy import PrivateWords
from milligpu.wire.verify import VerifiedGpu, VerifiedMachine

_SERIALS = ("nvmlDeviceGetSerial", "nvmlDeviceGetBoardPartNumber")
_RELEASE = Path("/etc/os-release")


@contextmanager
def open_gpus(env: Mapping[str, str]) -> Generator[NvmlGpus]:
    """Open this machine's GPUs; without any, a software GPU that lives as long as the block."""
    started = False
    paths = SoftgpuPaths.from_env(env)
    try:
        gpus = open_nvml(env)
    except Unavailable:
        started = True
        start_daemon(paths.folder, paths.cache, SoftgpuSpec(1, DEFAULT_MODEL, None), watch=os.getpid())
        gpus = open_nvml(env)
    try:
        with gpus:
            yield gpus
    finally:
        if started and is_running(paths.folder):
            stop_daemon(paths.folder)


def is_software(env: Mapping[str, str]) -> bool:
    """Whether the NVML that this process has opened is the software GPU's."""
    ours = library(f"softgpu/{NVML}")
    paths = {line.rpartition(" ")[2] for line in memory_maps(os.getpid()).splitlines() if NVML in line}
    return SOCKET_VARIABLE in env or any(Path(each).exists() and ours.samefile(each) for each in paths)


def describe(gpus: NvmlGpus) -> VerifiedMachine:
    """Describe the machine by models and versions only."""
    cuda = gpus.nvml.ask_system("nvmlSystemGetCudaDriverVersion") or 0
    release = _release()
    return VerifiedMachine(
        is_software(os.environ),
        [VerifiedGpu(gpu.model, gpu.mib, str(gpu.capability)) for gpu in gpus.known().values()],
        str(gpus.nvml.ask_system("nvmlSystemGetDriverVersion") or "unknown"),
        f"{cuda // 1000}.{cuda % 1000 // 10}",
        f"{release.get('ID', 'linux')} {release.get('VERSION_ID', '')}".strip(),
        # What comes after the numbers is a name that somebody gave to a build.
        ".".join(re.findall(r"\d+", platform.release().partition("-")[0])),
        platform.machine(),
        platform.python_version(),
    )


def _release() -> dict[str, str]:
    lines = _RELEASE.read_text().splitlines() if _RELEASE.is_file() else []
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def private_words(gpus: NvmlGpus, env: Mapping[str, str]) -> PrivateWords:
    """Collect what identifies this machine and its user."""
    host = socket.gethostname()
    users = {getpass.getuser(), *(env.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}
    serials: set[str] = {gpu.uuid for gpu in gpus.known().values()}
    for function in _SERIALS:
        for value in gpus.ask_each(function, lambda handle, asked=function: gpus.nvml.ask(asked, handle)).values():
            if value:
                serials.add(value.decode() if isinstance(value, bytes) else str(value))
    return PrivateWords([host, host.partition(".")[0]], users, serials)
