"""All GPUs of this machine that NVML lists."""

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState
from milligpu.nvml.discover import discover_driver, discover_gpu, discover_links
from milligpu.nvml.library import GpuLostError, Handle, Nvml
from milligpu.nvml.read import read_gpu, read_vitals
from milligpu.nvml.readings import GpuProcess, GpuReading, GpuVitals, LostGpu, Observation

_Read = TypeVar("_Read")


class NvmlGpus:
    """NVML and its GPUs. Each GPU is identified once, so a GPU that is lost later still has its UUID."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self.nvml = nvml or Nvml()
        self._gpus: dict[int, Gpu] = {}
        self._handles: dict[int, Handle] = {}
        self._identify()

    def __enter__(self) -> "NvmlGpus":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.nvml.close()

    def gpus(self) -> tuple[Gpu, ...]:
        """List the identified GPUs in NVML's order; lost ones are unhealthy."""
        lost = {each.uuid: each.message for each in self.read() if isinstance(each, LostGpu)}
        return tuple(
            replace(gpu, state=GpuState.UNHEALTHY, message=lost[gpu.uuid] or "lost") if gpu.uuid in lost else gpu
            for gpu in self.known().values()
        )

    def known(self) -> dict[int, Gpu]:
        """Return the identified GPUs by index, without asking NVML."""
        return dict(sorted(self._gpus.items()))

    def handles(self) -> dict[str, Handle]:
        """Return NVML's handles by UUID."""
        return {self._gpus[index].uuid: handle for index, handle in self._handles.items()}

    def read(self) -> tuple[Observation, ...]:
        return tuple(self._ask(index, read_gpu) for index in range(self.nvml.count()))

    def vitals(self) -> tuple[GpuVitals | LostGpu, ...]:
        """Read what health depends on: a few NVML calls per GPU where `read` makes dozens."""
        return tuple(self._ask(index, read_vitals) for index in range(self.nvml.count()))

    def processes(self) -> list[GpuProcess]:
        """List every process on every GPU as the driver counts it; empty when NVML does not answer."""
        return [each for reading in self.readings() for each in reading.processes]

    def readings(self) -> list[GpuReading]:
        """Read the GPUs that answer; none when NVML does not."""
        try:
            return [each for each in self.read() if isinstance(each, GpuReading)]
        except Unavailable:
            return []

    def reopen(self) -> int:
        """Open NVML again, which then also lists GPUs that were added; return their number. Indices may change."""
        self.nvml.reopen()
        self._gpus, self._handles = {}, {}
        self._identify()
        return self.nvml.count()

    def _ask(self, index: int, read: Callable[[Nvml, int, str, Handle], _Read]) -> _Read | LostGpu:
        try:
            if index not in self._gpus:
                self._identify()
            if index in self._gpus:
                return read(self.nvml, index, self._gpus[index].uuid, self._handles[index])
            message = ""
        except GpuLostError as error:
            message = str(error)
        return LostGpu(index, self._gpus[index].uuid if index in self._gpus else "", message)

    def vitals_of(self, index: int) -> GpuVitals | LostGpu:
        """Read what one GPU's health depends on."""
        return self._ask(index, read_vitals)

    def read_one(self, index: int) -> Observation:
        return self._ask(index, read_gpu)

    def _identify(self) -> None:
        """Identify the GPUs; one that is lost from the beginning is identified when it comes back."""
        driver, cuda = discover_driver(self.nvml)
        for index in range(self.nvml.count()):
            if index not in self._gpus:
                try:
                    handle = self.nvml.handle(index)
                    self._gpus[index] = replace(discover_gpu(self.nvml, handle), driver=driver, cuda=cuda)
                    self._handles[index] = handle
                except GpuLostError:
                    continue
        try:
            links = discover_links(self.nvml, self.handles())
        except GpuLostError:
            return
        self._gpus = {index: replace(gpu, links=links[gpu.uuid]) for index, gpu in self._gpus.items()}
