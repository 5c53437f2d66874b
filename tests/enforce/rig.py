"""Tenants on a software GPU, without an agent or an arbiter."""

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from milligpu.model.policy import SharePolicy
from milligpu.model.units import Milli
from milligpu.native import library
from milligpu.softgpu.models import find_model
from milligpu.softgpu.start import SoftgpuSpec, client_environment, read_state, start_daemon, stop_daemon
from milligpu.tenancy.tenant import CUDA, LIMITS, NVML, USAGE, DriverLibraries, TenantFolder
from milligpu.wire.limits import FRAME_US, GpuLimits, LimitsPage
from milligpu.wire.usage import USAGE_SLOTS_OFFSET, MemoryAccount, decode_usage

MIB = 1 << 20
MODEL = "T4"
CONTEXT = find_model(MODEL).context_memory
MEMORY_LIMIT = CONTEXT + 256 * MIB
# struct flock on Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_SLOT = 144


@dataclass(frozen=True, slots=True)
class SoftGpus:
    """Software GPUs that tenants share."""

    folder: Path
    cache: Path

    @property
    def uuids(self) -> list[str]:
        return [gpu["uuid"] for gpu in read_state(self.folder)]

    def used(self, index: int = 0) -> int:
        """The memory that all tenants use, by the GPU's own count."""
        return read_state(self.folder)[index]["used"]


@contextmanager
def soft_gpus(folder: Path, devices: int = 1, memory: int = 2 << 30) -> Generator[SoftGpus]:
    """Start software GPUs, and stop them at the end."""
    gpus = SoftGpus(folder / "gpus", folder / "cache")
    start_daemon(gpus.folder, gpus.cache, SoftgpuSpec(devices, MODEL, memory), watch=os.getpid())
    try:
        yield gpus
    finally:
        stop_daemon(gpus.folder)


@dataclass(frozen=True, slots=True)
class Tenant:
    """The limits libraries in a directory, with the tenant's own directory next to them."""

    folder: Path
    gpus: SoftGpus
    uuids: Sequence[str] = ()
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def page(self) -> Path:
        return self.folder / "tenant" / LIMITS

    @property
    def usage(self) -> Path:
        return self.folder / "tenant" / USAGE

    def set_limits(self, memory_limit: int, time_slot_us: int = FRAME_US) -> None:
        """Change the limits page in place, as the agent does."""
        TenantFolder(self.folder / "tenant").change(limits(self.uuids, memory_limit, time_slot_us))

    def environment(self) -> dict[str, str]:
        env = client_environment(self.gpus.folder, os.environ)
        env["LD_LIBRARY_PATH"] = f"{self.folder}:{env['LD_LIBRARY_PATH']}"
        return {**os.environ, **env}

    def start(self, *command: str | Path, **env: str) -> subprocess.Popen[str]:
        """Start a program as this tenant."""
        environment = {**self.environment(), **env}
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(started)
        return started

    def close(self) -> None:
        """Kill what a test left running."""
        for process in self.processes:
            with process:
                process.kill()

    def run(self, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command, **env) as process:
            out, err = process.communicate(timeout=200)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def python(self, code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", code, *arguments, **env)

    def account(self, gpu: int = 0) -> MemoryAccount:
        return decode_usage(self.usage.read_bytes()).accounts[gpu]

    def held(self, gpu: int = 0) -> int:
        """The memory that living processes hold: a process slot counts while its process has it locked."""
        with self.usage.open("r+b") as file:
            data = file.read()
            slots = range(USAGE_SLOTS_OFFSET, len(data), _SLOT)
            return sum(
                int.from_bytes(data[at + 16 + 8 * gpu : at + 24 + 8 * gpu], "little")
                for at in slots
                if data[at + 4] and _is_locked(file.fileno(), at)
            )


def _is_locked(file: int, at: int) -> bool:
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    return _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, question))[0] != fcntl.F_UNLCK


def limits(uuids: Sequence[str], memory_limit: int, time_slot_us: int = FRAME_US) -> LimitsPage:
    # Without an arbiter a tenant runs in its time slot: here the whole frame, unless a test shortens it.
    return LimitsPage(
        tuple(
            GpuLimits(
                uuid,
                Milli(500),
                Milli(500),
                memory_limit,
                SharePolicy.FIXED,
                slot_length_us=time_slot_us,
                context_bytes=CONTEXT,
            )
            for uuid in uuids
        )
    )


def tenant(
    folder: Path, on: SoftGpus, memory_limit: int = MEMORY_LIMIT, uuids: Sequence[str] | None = None
) -> Tenant:
    """Make the directories of a tenant."""
    made = Tenant(folder, on, on.uuids if uuids is None else uuids)
    folder.mkdir(parents=True)
    for name in (CUDA, NVML):
        (folder / name).symlink_to(library(f"enforce/{name}"))
    drivers = DriverLibraries(library(f"softgpu/{CUDA}"), library(f"softgpu/{NVML}"))
    TenantFolder.make(folder / "tenant", limits(made.uuids, memory_limit), drivers, os.geteuid())
    return made
