"""Where sessions get their GPUs: NVIDIA's where there are any, else a software GPU that is started for them.

Both are read through NVML. The software GPU's `libnvidia-ml.so.1` is loaded by its full path first, so the later
load by name in this process finds it.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from milligpu.model.errors import Unavailable
from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu
from milligpu.model.overheads import GpuOverheads
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.native import library
from milligpu.nvml.discover import discover_driver
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.health_records import HealthRecords
from milligpu.nvml.readings import GpuProcess, GpuReading, XidEvent
from milligpu.nvml.xid_events import XidEvents
from milligpu.sessions.paths import ServicePaths
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import (
    SoftgpuPaths,
    SoftgpuSpec,
    client_environment,
    is_running,
    start_daemon,
    stop_daemon,
)
from milligpu.tenancy.gpu_locks import MACHINE, GpuLocks
from milligpu.tenancy.overheads import MeasuredOverheads
from milligpu.tenancy.processes import memory_maps
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """The GPUs that sessions may use."""

    gpus: tuple[Gpu, ...]
    drivers: DriverLibraries
    softgpu: Path | None = None
    """The directory of the software GPUs' sockets; None for NVIDIA's GPUs."""
    pods: Mapping[str, GpuDemand] | None = None
    """On a cluster node: what sessions cannot have of each GPU, because it is for pods."""
    driver: str = ""
    """The driver's version; empty where it is not known."""
    cuda: str = ""
    """The newest version of CUDA that the driver supports, likewise."""


class GpuSource(Protocol):
    """Finds and reads the GPUs."""

    def find(self) -> MachineGpus:
        """Discover the GPUs, and start a software GPU where there is none."""
        ...

    def known(self) -> MachineGpus | None:
        """Return the GPUs that are there with their present health; starts none, locks none. None without any."""
        ...

    def overheads(self, gpu: str) -> GpuOverheads:
        """Return what the driver takes for a process on this GPU."""
        ...

    def processes(self) -> list[GpuProcess]:
        """List the processes on the GPUs as the driver counts them."""
        ...

    def readings(self) -> list[GpuReading]:
        """Read the GPUs that answer."""
        ...

    def close(self) -> None:
        """Release the GPUs."""
        ...


class LocalGpuSource:
    """The GPUs of a machine that is not a cluster node; starts and stops the software GPU."""

    def __init__(
        self,
        paths: ServicePaths,
        env: Mapping[str, str],
        share_policy: Callable[[int], SharePolicy] = lambda _index: DEFAULT_POLICY,
    ) -> None:
        """`share_policy` is that of the GPU with an index."""
        self._share_policy = share_policy
        self._paths = paths
        self._env = env
        self._softgpu = SoftgpuPaths.from_env(env)
        self._overheads = MeasuredOverheads(paths.overheads)
        self._nvml: NvmlGpus | None = None
        self._xids: XidEvents | None = None
        self._health = HealthRecords(time.monotonic)
        self._machine: MachineGpus | None = None
        self._locks: GpuLocks | None = None
        self._software_loaded = False

    def find(self) -> MachineGpus:
        """Discover the GPUs and lock them: no other session service may grant shares of them."""
        self._close_nvml()
        self._machine = self._real() or self._software()
        if self._locks is None:
            folder = self._machine.softgpu
            self._locks = GpuLocks(folder / "claims" if folder else MACHINE)
        self._locks.hold([gpu.uuid for gpu in self._machine.gpus])
        if self._nvml is not None:
            with suppress(Unavailable):  # then the GPUs are monitored by their readings alone
                self._xids = XidEvents(self._nvml)
        return self._with_health(self._machine)

    def known(self) -> MachineGpus | None:
        if self._machine is None:
            self._close_nvml()
        found = self._machine or self._real()
        found = found or (self._software() if is_running(self._softgpu.folder) else None)
        return None if found is None else self._with_health(found)

    def _with_health(self, machine: MachineGpus) -> MachineGpus:
        """Add what the GPUs show now, and the XIDs that the driver reported since they were discovered."""
        if self._nvml is None:
            return machine
        reported: list[XidEvent] = []
        with suppress(Unavailable):
            while self._xids is not None and (event := self._xids.wait(0)) is not None:
                reported.append(event)
        self._health.note(reported, self._nvml.vitals())
        return replace(machine, gpus=tuple(map(self._health.apply, machine.gpus)))

    def overheads(self, gpu: str) -> GpuOverheads:
        if self._machine is None:
            raise Unavailable("the GPUs were not discovered yet")
        folder = self._machine.softgpu
        env = {**self._env, **(client_environment(folder, self._env) if folder else {})}
        version = str(self._nvml.nvml.ask_system("nvmlSystemGetDriverVersion") or "") if self._nvml else ""
        found = next(each for each in self._machine.gpus if each.uuid == gpu)
        return self._overheads.of(found, self._machine.drivers.cuda, env, version=version)

    def processes(self) -> list[GpuProcess]:
        return self._nvml.processes() if self._nvml else []

    def readings(self) -> list[GpuReading]:
        return self._nvml.readings() if self._nvml else []

    def close(self) -> None:
        """Unlock the GPUs, and stop the software GPU if this service started it."""
        self._close_nvml()
        if self._locks is not None:
            self._locks.hold(())
        if self._paths.own_softgpu.exists():
            if is_running(self._softgpu.folder):
                stop_daemon(self._softgpu.folder)
            self._paths.own_softgpu.unlink()

    def _close_nvml(self) -> None:
        if self._xids is not None:
            self._xids.close()
        self._xids = None
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = None

    def _real(self) -> MachineGpus | None:
        """Return NVIDIA's GPUs, if there are any."""
        if self._software_loaded:
            return None  # this process has loaded the software GPU's library
        try:
            nvml = NvmlGpus()
        except Unavailable:
            return None
        gpus = nvml.gpus()
        if not gpus:
            nvml.close()
            return None
        self._nvml = nvml
        return self._machine_gpus(nvml, gpus, DriverLibraries(_opened(CUDA), _opened(NVML)))

    def _with_policy(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        return tuple(replace(gpu, policy=self._share_policy(index)) for index, gpu in enumerate(gpus))

    def _software(self) -> MachineGpus:
        folder = self._softgpu.folder
        if not is_running(folder):
            self._paths.own_softgpu.touch()
            start_daemon(folder, self._softgpu.cache, SoftgpuSpec(1, DEFAULT_MODEL, None))
        self._nvml = _open_software(folder)
        self._software_loaded = True
        drivers = DriverLibraries(library(f"softgpu/{CUDA}"), library(f"softgpu/{NVML}"))
        return self._machine_gpus(self._nvml, self._nvml.gpus(), drivers, folder)

    def _machine_gpus(
        self, nvml: NvmlGpus, gpus: Iterable[Gpu], drivers: DriverLibraries, softgpu: Path | None = None
    ) -> MachineGpus:
        driver, cuda = (str(each or "") for each in discover_driver(nvml.nvml))
        return MachineGpus(self._with_policy(gpus), drivers, softgpu, driver=driver, cuda=cuda)


def open_nvml(env: Mapping[str, str]) -> NvmlGpus:
    """Open NVML for this machine's GPUs, or for the software GPUs that `softgpu up` started; starts none."""
    try:
        return NvmlGpus()
    except Unavailable:
        folder = SoftgpuPaths.from_env(env).folder
        if not is_running(folder):
            raise
        return _open_software(folder)


def _open_software(folder: Path) -> NvmlGpus:
    os.environ[SOCKET_VARIABLE] = str(folder)
    ctypes.CDLL(str(library(f"softgpu/{NVML}")), ctypes.RTLD_GLOBAL)
    return NvmlGpus()


def _opened(name: str) -> Path:
    """Return where the loader finds a library of the driver."""
    try:
        ctypes.CDLL(name)
    except OSError:
        raise Unavailable(f"could not load {name}", hint="install NVIDIA's driver") from None
    stem = name.partition(".so")[0] + ".so"
    for line in memory_maps(os.getpid()).splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith(stem):
            return path
    raise Unavailable(f"{name} is loaded, but its path is unknown")
