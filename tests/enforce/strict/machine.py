"""GPUs behind the strict driver, their arbiter and tenants."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

from milligpu.model.policy import SharePolicy
from milligpu.model.units import WHOLE, Milli
from milligpu.native import library
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries, TenantFolder
from milligpu.wire.limits import FRAME_US, GpuLimits, LimitsPage
from milligpu.wire.usage import decode_usage

CLIENTS = Path(__file__).parent / "clients"
MIB = 1 << 20
CONTEXT = 100 * MIB


class StrictMachine:
    """A machine with an arbiter, on which each program is a tenant with an equal share."""

    def __init__(
        self, folder: Path, driver: Path, gpus: int, memory: int = 1024 * MIB, granule: int = 4096
    ) -> None:
        self._folder = folder
        self._driver = driver
        self.uuids = [f"GPU-{UUID(int=1 + at, version=4)}" for at in range(gpus)]
        self._memory = memory
        self._granule = granule
        self.arbiter = Arbiter()
        self._programs: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()
        self.arbiter.close()

    def tenant(self, name: str = "tenant", *, arbitrated: bool = True) -> Path:
        """Make a tenant; returns its directory."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        for each in (CUDA, NVML):
            (folder / each).symlink_to(library(f"enforce/{each}"))
        limits = tuple(
            GpuLimits(
                uuid,
                Milli(500),
                Milli(WHOLE),
                self._memory,
                SharePolicy.BEST_EFFORT,
                slot_length_us=FRAME_US,
                context_bytes=CONTEXT,
                granule_bytes=self._granule,
            )
            for uuid in self.uuids
        )
        drivers = DriverLibraries(self._driver, library(f"softgpu/{NVML}"))
        made = TenantFolder.make(folder / "tenant", LimitsPage(limits), drivers, os.geteuid())
        if arbitrated:
            self.arbiter.add(made.folder)
        return folder

    def start(self, tenant: Path | None, program: str, *arguments: object, **env: str) -> subprocess.Popen[str]:
        """Start a program as a tenant, or (None) on the driver itself."""
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(tenant or self._driver.parent),
            "STRICT_UUIDS": ",".join(self.uuids),
            "STRICT_DRIVER": str(self._driver),
            **env,
        }
        command = [sys.executable, CLIENTS / f"{program}.py", *map(str, arguments)]
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._programs.append(started)
        return started

    def run(self, tenant: Path | None, program: str, *arguments: object, **env: str) -> str:
        """Run a program to its end; its output, if it came to no forbidden call."""
        process = self.start(tenant, program, *arguments, **env)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{program} ended with {process.returncode}: {err[-2000:]}"
        return out

    def account(self, tenant: Path, gpu: int = 0) -> int:
        """The bytes that the tenant's memory account has on a GPU."""
        return decode_usage((tenant / "tenant/usage").read_bytes()).accounts[gpu].used
