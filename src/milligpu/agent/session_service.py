"""The session service of a cluster node, over the node's GPUs.

Imported with the first command: it brings placement and numpy, which a node without commands does not need.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from milligpu.agent.driver import NodeDriver
from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.model.footprint import NO_DEMAND, GpuDemand, larger_demand
from milligpu.model.gpu import Gpu
from milligpu.model.overheads import GpuOverheads
from milligpu.model.units import Mib, Milli
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.readings import GpuProcess, GpuReading
from milligpu.sessions.daemon import leftovers
from milligpu.sessions.gpu_source import MachineGpus
from milligpu.sessions.manager import SessionManager
from milligpu.sessions.monitor import SessionMonitor
from milligpu.sessions.paths import ServicePaths
from milligpu.sessions.service import SessionService
from milligpu.sessions.store import SessionStore
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries
from milligpu.tenancy.tenants import Tenants


class NodeGpuSource:
    """The node's GPUs for the session service: what is not reserved for sessions counts as held by pods."""

    def __init__(
        self,
        nvml: NvmlGpus,
        driver: NodeDriver,
        gpus: Callable[[], Iterable[Gpu]],
        pods: Callable[[], Mapping[str, GpuDemand]],
    ) -> None:
        """`gpus` are the GPUs as the inventory has them, `pods` is what pods hold of each."""
        self._nvml = nvml
        self._driver = driver
        self._gpus = gpus
        self._pods = pods

    def find(self) -> MachineGpus:
        held = self._pods()
        gpus = tuple(self._gpus())
        pods = {gpu.uuid: _for_pods(gpu, held.get(gpu.uuid, NO_DEMAND)) for gpu in gpus}
        drivers = DriverLibraries(self._driver.libraries[CUDA], self._driver.libraries[NVML])
        folder = next((socket.parent for socket in self._driver.sockets.values()), None)
        # What is not for sessions is in `pods`, so nothing is reserved on their side.
        return MachineGpus(tuple(replace(gpu, reserved=Milli(0)) for gpu in gpus), drivers, folder, pods)

    def known(self) -> MachineGpus:
        return self.find()

    def overheads(self, gpu: str) -> GpuOverheads:
        return self._driver.overheads[gpu]

    def processes(self) -> list[GpuProcess]:
        """List the processes without those of pods, which the agent audits."""
        return [each for each in self._nvml.processes() if pod_uid_of_process(each.pid) is None]

    def readings(self) -> list[GpuReading]:
        """Read the GPUs, without the processes of pods."""
        return [
            replace(each, processes=tuple(one for one in each.processes if pod_uid_of_process(one.pid) is None))
            for each in self._nvml.readings()
        ]

    def close(self) -> None:
        """Do nothing: the GPUs are the agent's."""


def _for_pods(gpu: Gpu, held: GpuDemand) -> GpuDemand:
    """What sessions cannot have: all but the reserved part, or more where pods hold more."""
    rest = GpuDemand(gpu.allocatable, Mib(gpu.mib - gpu.mib_of(gpu.reserved)))
    return larger_demand(rest, held)


def make_service(paths: ServicePaths, source: NodeGpuSource, tenants: Tenants) -> SessionService:
    """Make the service that serves commands on a node."""
    store = SessionStore(paths.sessions)
    return SessionService(
        lambda watch: SessionManager(store, source, tenants, name=platform.node(), now=time.time, watch=watch),
        lambda manager: SessionMonitor(manager, time.monotonic),
        lambda session: leftovers(source, store, session),
    )
