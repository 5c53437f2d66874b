"""What a container needs to reach its cards: the driver's files, and ours in front where a share is held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from milligpu.node.cdi import Edits, Mount

INSIDE = Path("/run/milligpu")
TENANT = INSIDE / "tenant"
"""Where the limits library looks for its pages inside a container."""
DRIVER = INSIDE / "driver"
"""Where the driver's own libraries are inside, when ours are in their place."""
SOFTGPU = INSIDE / "softgpu"
# Where the loaders of Debian's and of Red Hat's images look without being told.
LIBRARY_FOLDERS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
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
