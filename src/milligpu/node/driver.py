"""What a container needs to reach its cards: the driver's files, and ours in front where a share is held."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from milligpu.agent.context import Contexts
from milligpu.agent.tenant import CUDA, NVML
from milligpu.devices.cards import Cards
from milligpu.model.errors import Unavailable
from milligpu.native import library
from milligpu.node.cdi import Edits, Mount
from milligpu.softgpu.names import SOCKET_VARIABLE

INSIDE = Path("/run/milligpu")
TENANT = INSIDE / "tenant"
"""Where the limits library looks for its pages inside a container."""
DRIVER = INSIDE / "driver"
"""Where the driver's own libraries are inside, when ours are in their place."""
SOFTGPU = INSIDE / "softgpu"
# Where the loaders of Debian's and of Red Hat's images look without being told.
LIBRARY_FOLDERS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
# What CUDA programs open of the driver: the interface itself, its compilers, and what they open in turn.
_NVIDIA_LIBRARIES = (
    CUDA,
    NVML,
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so.1",
    "libcudadebugger.so.1",
    "libnvidia-opencl.so.1",
)
_CACHED = re.compile(r"^\s+(\S+) \(.*x86-64.*\) => (\S+)$", re.M)
_NVIDIA_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of this node as containers get it."""

    libraries: Mapping[str, Path]
    """By the names that programs open them by."""
    common: tuple[str, ...] = ()
    """Device nodes that every container with a card needs."""
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each card's own device node, by UUID."""
    sockets: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """A software card is a socket instead."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    version: str = ""
    contexts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes that a context takes of each card, by UUID."""


def find_driver(cards: Cards, state: Path, env: Mapping[str, str]) -> Driver:
    """The driver with what was measured of it."""
    found = locate_driver(cards, env)
    state.mkdir(parents=True, exist_ok=True)
    known = Contexts(state / "contexts.json")
    contexts = {gpu.uuid: known.bytes_of(gpu, found.libraries[CUDA], env) for gpu in cards.gpus()}
    version = str(cards.nvml.ask("nvmlSystemGetDriverVersion") or "")
    return replace(found, version=version, contexts=contexts)


def locate_driver(cards: Cards, env: Mapping[str, str]) -> Driver:
    """The driver that NVML belongs to: NVIDIA's, or the software GPU's where the environment names its cards."""
    return _softgpu(cards, Path(env[SOCKET_VARIABLE])) if SOCKET_VARIABLE in env else _nvidia(cards)


def _softgpu(cards: Cards, folder: Path) -> Driver:
    libraries = {name: library(f"softgpu/{name}") for name in (CUDA, NVML)}
    sockets = {uuid: folder / f"gpu{index}.sock" for index, uuid in enumerate(cards.handles())}
    return Driver(libraries, sockets=sockets, environment={SOCKET_VARIABLE: str(SOFTGPU)})


def _nvidia(cards: Cards) -> Driver:
    minors = {uuid: cards.nvml.ask("nvmlDeviceGetMinorNumber", handle) for uuid, handle in cards.handles().items()}
    libraries = _find_libraries()
    if CUDA not in libraries:
        raise Unavailable(f"{CUDA} is not among this machine's libraries", hint="install NVIDIA's driver")
    return nvidia(libraries, minors)


def _find_libraries() -> dict[str, Path]:
    """The driver's libraries by the names that programs open, as this machine's loader finds them."""
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = {name: Path(path) for name, path in _CACHED.findall(cache)}
    return {name: found[name] for name in _NVIDIA_LIBRARIES if name in found}


def nvidia(libraries: Mapping[str, Path], minors: Mapping[str, int], dev: Path = Path("/dev")) -> Driver:
    """NVIDIA's driver: its libraries and, by UUID, the cards' numbers."""
    common = tuple(path for path in _NVIDIA_COMMON if (dev / Path(path).name).exists())
    return Driver(libraries, common, {uuid: f"/dev/nvidia{minor}" for uuid, minor in minors.items()})


def whole_edits(driver: Driver, gpus: Sequence[str]) -> Edits:
    """A whole card: the driver's own libraries in their place, nothing of ours in the way."""
    return Edits(
        _environment(driver, gpus), _nodes(driver, gpus), (*_in_place(driver.libraries), *_sockets(driver, gpus))
    )


def share_edits(driver: Driver, ours: Mapping[str, Path], gpus: Sequence[str], tenant: Path, usage: str) -> Edits:
    """A share: our libraries in the driver's place, the driver's behind them, and the tenant's folder.

    The folder is mounted, not its files, so that a socket which a restarted agent makes anew is seen inside; only
    the usage page can be written there.
    """
    behind = tuple(Mount(str(path), str(DRIVER / name)) for name, path in driver.libraries.items() if name in ours)
    beside = {name: path for name, path in driver.libraries.items() if name not in ours}
    pages = (
        Mount(str(tenant), str(TENANT)),
        Mount(str(tenant / usage), str(TENANT / usage), writable=True),
    )
    mounts = (*_in_place({**beside, **ours}), *behind, *pages, *_sockets(driver, gpus))
    return Edits(_environment(driver, gpus), _nodes(driver, gpus), mounts)


def _in_place(libraries: Mapping[str, Path]) -> tuple[Mount, ...]:
    return tuple(
        Mount(str(path), str(folder / name)) for folder in LIBRARY_FOLDERS for name, path in libraries.items()
    )


def _nodes(driver: Driver, gpus: Sequence[str]) -> tuple[str, ...]:
    return (*driver.common, *(driver.nodes[uuid] for uuid in gpus)) if driver.nodes else ()


def _sockets(driver: Driver, gpus: Sequence[str]) -> tuple[Mount, ...]:
    found = [driver.sockets[uuid] for uuid in gpus if uuid in driver.sockets]
    return tuple(Mount(str(socket), str(SOFTGPU / socket.name)) for socket in found)


def _environment(driver: Driver, gpus: Sequence[str]) -> dict[str, str]:
    """NVIDIA's runtime hook, where there is one, must not add cards of its own accord."""
    return {**driver.environment, "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
