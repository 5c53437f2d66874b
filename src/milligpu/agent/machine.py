"""This machine's GPUs: NVIDIA's where there are any, else one in software that is started for the purpose."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from milligpu.agent.places import Places
from milligpu.agent.tenant import CUDA, Drivers
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Capability, Gpu
from milligpu.model.units import Mib
from milligpu.native import library
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.start import Fleet, is_running, read_state, start_daemon, stop_daemon
from milligpu.softgpu.start import Places as SoftgpuPlaces


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to share."""

    gpus: tuple[Gpu, ...]
    drivers: Drivers
    softgpu: Path | None = None
    """The folder of the software GPUs' sockets."""


class Hardware:
    """Finds the GPUs, and starts and stops those in software."""

    def __init__(self, places: Places, env: Mapping[str, str]) -> None:
        self._places = places
        self._softgpu = SoftgpuPlaces.from_env(env)

    def find(self) -> Machine:
        """What there is now."""
        return self._software()

    def used(self) -> dict[str, dict[int, int]]:
        """Bytes in use on each GPU by process, as the driver counts them."""
        try:
            cards = read_state(self._softgpu.folder)
        except Unavailable:
            return {}
        return {
            card["uuid"]: {process["pid"]: process["memory"] for process in card["processes"]} for card in cards
        }

    def close(self) -> None:
        """Nobody needs it any more: end the software GPUs, unless somebody else started them."""
        if self._places.own_softgpu.exists():
            if is_running(self._softgpu.folder):
                stop_daemon(self._softgpu.folder)
            self._places.own_softgpu.unlink()

    def _software(self) -> Machine:
        folder = self._softgpu.folder
        if not is_running(folder):
            self._places.own_softgpu.touch()
            start_daemon(folder, self._softgpu.cache, Fleet(1, DEFAULT_MODEL, None))
        gpus = tuple(
            Gpu(card["uuid"], card["name"], Mib(card["memory"] >> 20), capability=Capability(8, 6))
            for card in read_state(folder)
        )
        return Machine(gpus, Drivers(library(f"softgpu/{CUDA}"), None), folder)
