"""All GPUs of this machine that NVML lists. Each fails on its own: by an odd answer, or by none."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuLink, GpuState
from milligpu.nvml.discover import discover_driver, discover_gpu, discover_links
from milligpu.nvml.library import GpuLostError, Handle, Nvml
from milligpu.nvml.patience import PatientCalls
from milligpu.nvml.read import read_gpu, read_vitals
from milligpu.nvml.readings import GpuProcess, GpuReading, GpuVitals, LostGpu, Observation

_Read = TypeVar("_Read")

# A driver that wakes a GPU up takes a second or two. A call that takes longer than this may never return.
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class _Card:
    gpu: Gpu
    handle: Handle


class NvmlGpus:
    """NVML and its GPUs. Each GPU is identified once, so a GPU that is lost later still has its UUID.

    All GPUs are asked at once, each in a thread of its own; one that does not answer in time delays no other.
    """

    def __init__(
        self, nvml: Nvml | None = None, *, answer_s: float = ANSWER_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = PatientCalls(answer_s, now)
        self._silence = f"the driver has not answered for {answer_s:g} s"
        self.nvml = nvml or Nvml()
        # Threads read it, so it is replaced and never changed.
        self._cards: dict[int, _Card] = {}
        self._adding = threading.Lock()
        self._linked = frozenset[int]()
        """The GPUs that answered when links were last looked for."""
        self._identify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down, unless a call hangs in it: then this would hang, too."""
        if not self._calls.waiting:
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
        return {index: card.gpu for index, card in self._cards.items()}

    def handles(self) -> dict[str, Handle]:
        """Return NVML's handles by UUID, in the order of their indices."""
        return {card.gpu.uuid: card.handle for card in self._cards.values()}

    def read(self) -> tuple[Observation, ...]:
        return self._observe("read", read_gpu)

    def vitals(self) -> tuple[GpuVitals | LostGpu, ...]:
        """Read what health depends on: a few NVML calls per GPU where `read` makes dozens."""
        return self._observe("vitals", read_vitals)

    def processes(self) -> list[GpuProcess]:
        """List every process on every GPU as the driver counts it; empty when NVML does not answer."""
        return [each for reading in self.readings() for each in reading.processes]

    def readings(self) -> list[GpuReading]:
        """Read the GPUs that answer; none when NVML does not."""
        try:
            return [each for each in self.read() if isinstance(each, GpuReading)]
        except Unavailable:
            return []

    def ask_each(self, what: str, ask: Callable[[Handle], _Read], skip: Collection[str] = ()) -> dict[str, _Read]:
        """Ask something about every identified GPU; by UUID, without those that do not answer as they should."""
        handles = {uuid: handle for uuid, handle in self.handles().items() if uuid not in skip}
        answers = self._calls.together({f"{what} {uuid}": partial(ask, each) for uuid, each in handles.items()})
        return {uuid: each for uuid, each in zip(handles, answers, strict=True) if not isinstance(each, Exception)}

    def reopen(self) -> int:
        """Open NVML again, which then also lists GPUs that were added; return their number. Indices may change."""
        if self._calls.waiting:
            raise Unavailable("a call of NVML has not returned yet")
        try:
            self._calls.one("reopen", self.nvml.reopen)
        except TimeoutError:
            raise Unavailable(self._silence) from None
        self._cards = {}
        return self._identify_all()

    def _observe(self, what: str, read: Callable[[Nvml, int, str, Handle], _Read]) -> tuple[_Read | LostGpu, ...]:
        indices = range(self.count())
        answers = self._calls.together({f"{what} {index}": partial(self._ask, index, read) for index in indices})
        answering = frozenset(index for index, answer in enumerate(answers) if not isinstance(answer, Exception))
        if answering - self._linked:
            self._find_links(answering)
        return tuple(
            self._lost(index, answer) if isinstance(answer, Exception) else answer
            for index, answer in enumerate(answers)
        )

    def _ask(self, index: int, read: Callable[[Nvml, int, str, Handle], _Read]) -> _Read:
        if index not in self._cards:
            self._identify(index)
        card = self._cards[index]
        return read(self.nvml, index, card.gpu.uuid, card.handle)

    def _lost(self, index: int, error: Exception) -> LostGpu:
        uuid = self._cards[index].gpu.uuid if index in self._cards else ""
        match error:
            case TimeoutError():
                return LostGpu(index, uuid, self._silence, silent=True)
            case GpuLostError():
                return LostGpu(index, uuid, str(error))
            case _:
                # The binding itself failed on what the driver said. Nothing is known about the GPU.
                return LostGpu(index, uuid, f"NVML's answer cannot be read: {type(error).__name__}: {error}")

    def count(self) -> int:
        """Return the number of GPUs, lost ones included."""
        try:
            return self._calls.one("count", self.nvml.count)
        except TimeoutError:
            raise Unavailable(self._silence, hint="look at: dmesg; nvidia-smi") from None

    def _identify_all(self) -> int:
        """Identify the GPUs; one that is lost from the beginning is identified when it comes back."""
        count = self.count()
        self._calls.together({f"identify {index}": partial(self._identify, index) for index in range(count)})
        self._find_links(frozenset(self._cards))
        return count

    def _identify(self, index: int) -> None:
        driver, cuda = discover_driver(self.nvml)
        handle = self.nvml.handle(index)
        gpu = replace(discover_gpu(self.nvml, handle), driver=driver, cuda=cuda)
        with self._adding:
            # Threads identify them in any order; everybody else relies on NVML's.
            self._cards = dict(sorted({**self._cards, index: _Card(gpu, handle)}.items()))

    def _find_links(self, answering: frozenset[int]) -> None:
        """Look for links, at first and when one more GPU answers: a lost GPU has none."""
        (links,) = self._calls.together({"links": lambda: discover_links(self.nvml, self.handles())})
        if isinstance(links, Exception):
            return
        with self._adding:
            self._linked = answering
            self._cards = {index: _with_links(card, links) for index, card in self._cards.items()}


def _with_links(card: _Card, links: Mapping[str, Mapping[str, GpuLink]]) -> _Card:
    return replace(card, gpu=replace(card.gpu, links=links.get(card.gpu.uuid, card.gpu.links)))
