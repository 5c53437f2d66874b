"""This machine's GPUs: NVIDIA's where there are any, else one in software that is started for the purpose.

Both are asked through NVML. The software GPU's management library is loaded by its full path first; whoever asks
for `libnvidia-ml.so.1` later in this process then gets it.
"""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from milligpu.agent.audit import Seen
from milligpu.agent.claims import MACHINE, Claims
from milligpu.agent.context import Contexts
from milligpu.agent.places import Places
from milligpu.agent.processes import memory_maps
from milligpu.agent.tenant import CUDA, NVML, Drivers
from milligpu.devices.cards import Cards
from milligpu.devices.reading import Reading
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu
from milligpu.native import library
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import Fleet, client_environment, is_running, start_daemon, stop_daemon
from milligpu.softgpu.start import Places as SoftgpuPlaces


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to share."""

    gpus: tuple[Gpu, ...]
    drivers: Drivers
    softgpu: Path | None = None
    """The folder of the software GPUs' sockets."""


class Hardware(Protocol):
    """Where GPUs come from."""

    def find(self) -> Machine:
        """What there is now."""
        ...

    def context_bytes(self, gpu: Gpu) -> int:
        """What each context takes of such a card before anything is allocated in it."""
        ...

    def seen(self) -> list[Seen]:
        """Who is on which GPU, as the driver counts it."""
        ...

    def close(self) -> None:
        """Nobody needs it any more."""
        ...


class OwnHardware:
    """Finds the GPUs, asks how they stand, and starts and stops those in software."""

    def __init__(self, places: Places, env: Mapping[str, str]) -> None:
        self._places = places
        self._env = env
        self._softgpu = SoftgpuPlaces.from_env(env)
        self._contexts = Contexts(places.contexts)
        self._cards: Cards | None = None
        self._machine: Machine | None = None
        self._claims: Claims | None = None

    def find(self) -> Machine:
        """What there is now; from now on no other agent shares it out."""
        self._let_go()
        self._machine = self._real() or self._software()
        if self._claims is None:
            folder = self._machine.softgpu
            self._claims = Claims(folder / "claims" if folder else MACHINE)
        self._claims.hold([gpu.uuid for gpu in self._machine.gpus])
        return self._machine

    def context_bytes(self, gpu: Gpu) -> int:
        """What each context takes of such a card before anything is allocated in it."""
        if self._machine is None:
            raise Unavailable("nobody looked for GPUs yet")
        folder = self._machine.softgpu
        env = {**self._env, **(client_environment(folder, self._env) if folder else {})}
        return self._contexts.bytes_of(gpu, self._machine.drivers.cuda, env)

    def seen(self) -> list[Seen]:
        """Who is on which GPU, as the driver counts it."""
        return seen_of(self._cards) if self._cards else []

    def close(self) -> None:
        """Nobody needs it any more: end the software GPUs, unless somebody else started them."""
        self._let_go()
        if self._claims is not None:
            self._claims.hold(())
        if self._places.own_softgpu.exists():
            if is_running(self._softgpu.folder):
                stop_daemon(self._softgpu.folder)
            self._places.own_softgpu.unlink()

    def _let_go(self) -> None:
        if self._cards is not None:
            self._cards.close()
        self._cards = None

    def _real(self) -> Machine | None:
        """NVIDIA's cards, if there are any."""
        if self._machine is not None and self._machine.softgpu is not None:
            return None  # this process has the software GPU's library by now
        try:
            cards = Cards()
        except Unavailable:
            return None
        gpus = cards.gpus()
        if not gpus:
            cards.close()
            return None
        self._cards = cards
        return Machine(gpus, Drivers(_opened(CUDA), _opened(NVML)))

    def _software(self) -> Machine:
        folder = self._softgpu.folder
        if not is_running(folder):
            self._places.own_softgpu.touch()
            start_daemon(folder, self._softgpu.cache, Fleet(1, DEFAULT_MODEL, None))
        os.environ[SOCKET_VARIABLE] = str(folder)
        management = library(f"softgpu/{NVML}")
        ctypes.CDLL(str(management), ctypes.RTLD_GLOBAL)
        self._cards = Cards()
        return Machine(self._cards.gpus(), Drivers(library(f"softgpu/{CUDA}"), management), folder)


def seen_of(cards: Cards) -> list[Seen]:
    """Who is on which card, as the driver counts it; nobody when it does not answer."""
    try:
        readings = cards.read()
    except Unavailable:
        return []
    return [
        Seen(
            reading.uuid,
            process.pid,
            process.memory,
            None if process.utilisation is None else process.utilisation * 10,
        )
        for reading in readings
        if isinstance(reading, Reading)
        for process in reading.processes
    ]


def _opened(name: str) -> Path:
    """Where the loader finds a library of the driver."""
    try:
        ctypes.CDLL(name)
    except OSError:
        raise Unavailable(f"{name} does not load", hint="install NVIDIA's driver") from None
    stem = name.partition(".so")[0] + ".so"
    for line in memory_maps(os.getpid()).splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith(stem):
            return path
    raise Unavailable(f"{name} is nowhere to be found")
