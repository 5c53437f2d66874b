"""This machine's cards as one object: what a command or an agent holds."""

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from milligpu.devices.discover import discover_gpu, discover_links
from milligpu.devices.nvml import GpuLost, Handle, Nvml
from milligpu.devices.read import read_card, read_vitals
from milligpu.devices.reading import Lost, Observation, Vitals
from milligpu.model.gpu import Gpu, State

_Seen = TypeVar("_Seen")


class Cards:
    """NVML and the cards in it. Identities are learnt once: a card that is lost later still has its name."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self.nvml = nvml or Nvml()
        self._gpus: dict[int, Gpu] = {}
        self._handles: dict[int, Handle] = {}
        self._learn()

    def __enter__(self) -> "Cards":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of NVML."""
        self.nvml.close()

    def gpus(self) -> tuple[Gpu, ...]:
        """The cards whose identity is known, in their order; those that are lost are sick."""
        lost = {each.uuid for each in self.read() if isinstance(each, Lost)}
        return tuple(
            replace(gpu, state=State.SICK, reason="lost") if gpu.uuid in lost else gpu
            for _, gpu in sorted(self._gpus.items())
        )

    def handles(self) -> dict[str, Handle]:
        """NVML's handles, by UUID."""
        return {self._gpus[index].uuid: handle for index, handle in self._handles.items()}

    def read(self) -> tuple[Observation, ...]:
        """How every card stands now."""
        return tuple(self._ask(index, read_card) for index in range(self.nvml.count()))

    def vitals(self) -> tuple[Vitals | Lost, ...]:
        """Whether every card is well: a few questions where `read` asks dozens."""
        return tuple(self._ask(index, read_vitals) for index in range(self.nvml.count()))

    def _ask(self, index: int, read: Callable[[Nvml, int, str, Handle], _Seen]) -> _Seen | Lost:
        try:
            if index not in self._gpus:
                self._learn()
            if index in self._gpus:
                return read(self.nvml, index, self._gpus[index].uuid, self._handles[index])
        except GpuLost:
            pass
        return Lost(index, self._gpus[index].uuid if index in self._gpus else "")

    def _learn(self) -> None:
        """Learn who is there; a card that is lost from the beginning is learnt when it comes back."""
        for index in range(self.nvml.count()):
            if index not in self._gpus:
                try:
                    handle = self.nvml.handle(index)
                    self._gpus[index] = discover_gpu(self.nvml, handle)
                    self._handles[index] = handle
                except GpuLost:
                    continue
        try:
            links = discover_links(self.nvml, self.handles())
        except GpuLost:
            return
        self._gpus = {index: replace(gpu, links=links[gpu.uuid]) for index, gpu in self._gpus.items()}
