"""What a container needs to reach its GPUs: the driver's files and, for a share, the limits library in front."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from milligpu.agent.cdi import ContainerEdits, DeviceNode, Hook, Mount, read_only, writable
from milligpu.agent.host_paths import DRIVER_CONTAINER, HostPaths
from milligpu.agent.loader_cache import library_folders, read_loader_cache
from milligpu.agent.nvidia_cdi import folders_of, programs_of, share_part, updates_loader_cache
from milligpu.agent.nvidia_spec import NvidiaSpecs
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState, SharingMode
from milligpu.model.overheads import GpuOverheads
from milligpu.native import library
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.library import Nvml
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.tenancy.overheads import MeasuredOverheads
from milligpu.tenancy.tenant import CUDA, NVML

INSIDE = Path("/run/milligpu")
TENANT = INSIDE / "tenant"
"""Where the limits library looks for its pages inside a container."""
DRIVER = INSIDE / "driver"
"""Where the driver's own libraries are inside, if the limits library is in their place."""
OURS = INSIDE / "lib"
"""Where the limits library is inside, besides the directories of the driver: first in the loader's cache."""
SOFTGPU = INSIDE / "softgpu"
# Where the loaders of Debian's and of Red Hat's images look by default.
LIBRARY_FOLDERS = tuple(map(Path, library_folders()[:2]))
# In the library path of CUDA's base images, before the loader's cache.
_CUDA_IMAGES = Path("/usr/local/nvidia")
_SMI = "nvidia-smi"
# What CUDA programs open of the driver: the interface itself, its compilers, and what they open in turn. Some have
# the driver's version in their name, so each stands for all versions.
_NVIDIA_LIBRARIES = re.compile(
    r"(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler|libnvidia-nvvm|libnvidia-nvvm70|libnvidia-gpucomp"
    r"|libnvidia-cfg|libnvidia-allocator|libnvidia-pkcs11(-openssl\d*)?|libnvidia-fatbinaryloader"
    r"|libnvidia-compiler|libcudadebugger|libnvidia-opencl)\.so\.[\d.]+"
)
# OpenCL reaches the GPU past libcuda, so memory and launches would not be counted.
_UNMETERED = "libnvidia-opencl."
# Without /dev/nvidia-modeset: graphics are attached by NVIDIA's specification only, to whole GPUs.
_NVIDIA_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class NodeDriver:
    """The driver of this node, as containers get it."""

    libraries: Mapping[str, Path]
    """The node's paths by the names that programs open them by."""
    common: tuple[str, ...] = ()
    """Device nodes that every container with a GPU needs, if they exist."""
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The device node of each GPU, by UUID."""
    sockets: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """The socket of each software GPU, which has no device node."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    version: str = ""
    overheads: Mapping[str, GpuOverheads] = field(default_factory=dict[str, GpuOverheads])
    """What the driver takes for a process on each GPU, by UUID."""
    unmeasured: MutableMapping[str, str] = field(default_factory=dict[str, str])
    """Why that is unknown for some GPUs, by UUID: these get no shares. `measure` tries again."""
    measure: Callable[[Iterable[Gpu]], None] = lambda _gpus: None
    dev: Path = Path("/dev")
    host: HostPaths = field(default_factory=HostPaths)
    nvidia: NvidiaSpecs | None = None
    """NVIDIA's CDI specification; None with software GPUs."""
    programs: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """The driver's programs that the agent found itself, by name."""
    hook: Path | None = None
    """Our own hook for shares: it covers every libcuda of the image with ours."""

    def common_nodes(self) -> tuple[str, ...]:
        """Return those of `common` that exist now."""
        return tuple(path for path in self.common if (self.dev / Path(path).name).exists())

    def refresh(self, gpus: Iterable[str]) -> str:
        """Look at NVIDIA's specification again; return why containers with these GPUs cannot be attached now."""
        return self.nvidia.refresh({uuid: self.nodes.get(uuid, "") for uuid in gpus}) if self.nvidia else ""

    def nvidia_edits(self, gpus: Sequence[str]) -> ContainerEdits | None:
        """Return what NVIDIA's specification attaches of these GPUs; None without one."""
        spec = self.nvidia.spec if self.nvidia else None
        return spec.edits_of({uuid: self.nodes.get(uuid, "") for uuid in gpus}) if spec else None


def find_driver(nvml: NvmlGpus, state: Path, env: Mapping[str, str], host: HostPaths | None = None) -> NodeDriver:
    """Find the driver, and measure what it takes for a process."""
    found = locate_driver(nvml, env, host)
    state.mkdir(parents=True, exist_ok=True)
    known = MeasuredOverheads(state / "overheads.json")
    overheads, unmeasured = dict[str, GpuOverheads](), dict[str, str]()
    version = str(nvml.nvml.ask_system("nvmlSystemGetDriverVersion") or "")
    nodes, sockets = dict(found.nodes), dict(found.sockets)
    cuda, nvml_library = (found.host.here(found.libraries[name]) for name in (CUDA, NVML))

    def measure(gpus: Iterable[Gpu]) -> None:
        """Measure what is not known yet. A GPU that is unhealthy or full now can be measured later."""
        for gpu in gpus:
            if gpu.uuid in overheads or gpu.mode is SharingMode.MIG:
                continue
            if gpu.state is GpuState.UNHEALTHY:
                unmeasured[gpu.uuid] = gpu.message
                continue
            try:
                _add_gpu(nvml, gpu.uuid, nodes, sockets)
                overheads[gpu.uuid] = known.of(gpu, cuda, env, nvml_library, version)
                unmeasured.pop(gpu.uuid, None)
            except Unavailable as error:
                unmeasured[gpu.uuid] = error.message

    measure(nvml.gpus())
    return replace(
        found,
        version=version,
        nodes=nodes,
        sockets=sockets,
        overheads=overheads,
        unmeasured=unmeasured,
        measure=measure,
    )


def _add_gpu(nvml: NvmlGpus, uuid: str, nodes: dict[str, str], sockets: dict[str, Path]) -> None:
    """Add the device node or socket of a GPU that was added, or was lost, when the agent started."""
    if uuid in nodes or uuid in sockets:
        return
    if sockets:
        sockets[uuid] = next(iter(sockets.values())).with_name(f"gpu{_indices(nvml).get(uuid, 0)}.sock")
        return
    minor = _minors(nvml).get(uuid)
    if minor is None:
        raise Unavailable("NVML does not report its device node")
    nodes[uuid] = f"/dev/nvidia{minor}"


def _minors(nvml: NvmlGpus) -> dict[str, int]:
    """Return the minor device numbers of the GPUs that tell them, by UUID."""
    asked = nvml.ask_each("minor", lambda handle: nvml.nvml.try_ask("nvmlDeviceGetMinorNumber", handle))
    return {uuid: minor for uuid, minor in asked.items() if minor is not None}


def find_host_paths(root: Path, driver: Path | None, env: Mapping[str, str]) -> HostPaths | None:
    """Return where NVIDIA's driver is; None if the agent runs on software GPUs only.

    Without a `driver` root, a driver in a container counts before one on the node, which may be an old one.
    """
    if driver is not None:
        return HostPaths(root, driver)
    if SOCKET_VARIABLE in env:
        return None
    for each in (DRIVER_CONTAINER, Path("/")):
        paths = HostPaths(root, each)
        if NVML in find_libraries(paths):
            return paths
    return HostPaths(root)


def open_node_nvml(host: HostPaths | None) -> NvmlGpus:
    """Open the NVML of the node's driver, which the loader of an agent in a container does not find."""
    own = find_libraries(host).get(NVML) if host and host.driver_root != Path("/") else None
    return NvmlGpus(Nvml(host.here(own))) if host and own else NvmlGpus()


def locate_driver(nvml: NvmlGpus, env: Mapping[str, str], host: HostPaths | None = None) -> NodeDriver:
    """Return NVML's driver: NVIDIA's, or the software GPU's if the environment names its sockets.

    Software GPUs can stand behind an NVIDIA driver root: then containers are attached as on a node with real ones.
    """
    hook = _attach_hook()
    soft = softgpu_driver(_indices(nvml), Path(env[SOCKET_VARIABLE])) if SOCKET_VARIABLE in env else None
    if soft is not None and host is None:
        return soft
    found = _nvidia(nvml, host or HostPaths())
    if soft is not None:
        found = replace(found, sockets=soft.sockets, environment=soft.environment)
    return replace(found, hook=hook)


def _attach_hook() -> Path:
    """Return our hook. One that the runtime cannot run would keep every container from starting."""
    hook = library("milligpu-attach-hook")
    if not os.access(hook, os.X_OK):
        raise Unavailable(f"{hook} is not executable", hint="reinstall milligpu")
    return hook


def _indices(nvml: NvmlGpus) -> dict[str, int]:
    return {gpu.uuid: index for index, gpu in nvml.known().items()}


def softgpu_driver(indices: Mapping[str, int], folder: Path) -> NodeDriver:
    """Return the driver of software GPUs; `indices` are their numbers by UUID."""
    libraries = {name: library(f"softgpu/{name}") for name in (CUDA, NVML)}
    sockets = {uuid: folder / f"gpu{index}.sock" for uuid, index in indices.items()}
    environment = {SOCKET_VARIABLE: str(SOFTGPU)}
    return NodeDriver(libraries, sockets=sockets, environment=environment, hook=_attach_hook())


def _nvidia(nvml: NvmlGpus, host: HostPaths) -> NodeDriver:
    libraries = find_libraries(host)
    missing = [name for name in (CUDA, NVML) if name not in libraries]
    if missing:
        raise Unavailable(
            f"{missing[0]} is not among the libraries below {host.driver_root}",
            hint="install NVIDIA's driver, or set --host-root and --driver-root",
        )
    return nvidia_driver(libraries, _minors(nvml), host.here("/dev"), host)


def find_libraries(host: HostPaths) -> dict[str, Path]:
    """Return the node's paths of the driver's libraries, by the names under which its loader finds them."""
    root = host.driver_root
    try:
        found = read_loader_cache((root / "etc/ld.so.cache").read_bytes())
    except OSError:
        found = dict[str, str]()
    for folder in library_folders():
        for path in sorted((root / folder.lstrip("/")).glob("lib*.so.*")):
            found.setdefault(path.name, f"{folder}/{path.name}")
    present = {
        name: host.of_driver(Path(path)) for name, path in found.items() if _NVIDIA_LIBRARIES.fullmatch(name)
    }
    return {name: path for name, path in present.items() if host.exists(path)}


def nvidia_driver(
    libraries: Mapping[str, Path],
    minors: Mapping[str, int],
    dev: Path = Path("/dev"),
    host: HostPaths | None = None,
    specs: NvidiaSpecs | None = None,
) -> NodeDriver:
    """Return NVIDIA's driver; `minors` are the minor device numbers by UUID."""
    host = host or HostPaths()
    nodes = {uuid: f"/dev/nvidia{minor}" for uuid, minor in minors.items()}
    smi = host.of_driver(Path("/usr/bin", _SMI))
    programs = {_SMI: smi} if host.exists(smi) else {}
    return NodeDriver(
        libraries, _NVIDIA_COMMON, nodes, dev=dev, host=host, nvidia=specs or NvidiaSpecs(host), programs=programs
    )


def whole_edits(driver: NodeDriver, gpus: Sequence[str]) -> ContainerEdits:
    """Return the edits for whole GPUs: all that NVIDIA's toolkit attaches, without the limits library."""
    edits = driver.nvidia_edits(gpus) or ContainerEdits()
    if not updates_loader_cache(edits):
        edits = edits.plus(ContainerEdits(mounts=_in_place(driver.libraries)))
    return edits.plus(_common_edits(driver, gpus, edits))


def share_edits(
    driver: NodeDriver, ours: Mapping[str, Path], gpus: Sequence[str], tenant: Path, usage: str
) -> ContainerEdits:
    """Return the edits for a share: limits library in the driver's place, driver behind it, tenant's directory.

    The directory is mounted instead of its files, so that the container sees the new socket of a restarted agent.
    Only the usage page is writable.
    """
    vendor = driver.nvidia_edits(gpus)
    if vendor is None:
        beside = {name: path for name, path in driver.libraries.items() if not name.startswith((*ours, _UNMETERED))}
        edits, folders = ContainerEdits(mounts=_in_place(beside)), ()
    else:
        edits, folders = share_part(vendor, list(ours), str(OURS)), folders_of(vendor, CUDA)
    in_front = dict.fromkeys((*LIBRARY_FOLDERS, *map(Path, folders), OURS, _CUDA_IMAGES / "lib64"))
    mounts = (
        *(
            read_only(path, folder / name)
            for folder in in_front
            for library_name, path in ours.items()
            # Compilers look for the name without a version.
            for name in (library_name, library_name.removesuffix(".1"))
        ),
        *(read_only(path, DRIVER / name) for name, path in driver.libraries.items() if name in ours),
        read_only(tenant, TENANT),
        writable(tenant / usage, TENANT / usage),
    )
    # Triton asks the loader's cache for libcuda, unless it is told.
    told = {} if updates_loader_cache(edits) else {"TRITON_LIBCUDA_PATH": str(OURS)}
    edits = edits.plus(ContainerEdits(told, mounts=mounts)).plus(_common_edits(driver, gpus, edits))
    # Last: it looks at the loader's cache that the hooks before it made.
    return edits.plus(ContainerEdits(hooks=_cover(driver, ours)))


def _cover(driver: NodeDriver, ours: Mapping[str, Path]) -> tuple[Hook, ...]:
    if driver.hook is None:
        return ()
    return (Hook("createContainer", str(driver.hook), (driver.hook.name, *ours)),)


def _common_edits(driver: NodeDriver, gpus: Sequence[str], vendor: ContainerEdits) -> ContainerEdits:
    """Return what whole GPUs and shares both need beyond the vendor's edits."""
    programs = {**{name: str(path) for name, path in driver.programs.items()}, **programs_of(vendor)}
    smi = programs.get(_SMI)
    found = {each.path for each in vendor.device_nodes} | {each.inside for each in vendor.mounts}
    nodes = tuple(DeviceNode(path) for path in _nodes(driver, gpus) if path not in found)
    places = [path for path in (f"/usr/bin/{_SMI}", f"{_CUDA_IMAGES}/bin/{_SMI}") if path not in found]
    mounts = tuple(read_only(smi, path) for path in places) if smi else ()
    return ContainerEdits(_environment(driver, gpus), nodes, (*mounts, *_sockets(driver, gpus)))


def _in_place(libraries: Mapping[str, Path]) -> tuple[Mount, ...]:
    return tuple(read_only(path, folder / name) for folder in LIBRARY_FOLDERS for name, path in libraries.items())


def _nodes(driver: NodeDriver, gpus: Sequence[str]) -> tuple[str, ...]:
    """Return the device nodes that exist now: /dev/nvidia-uvm is created late, and a GPU may be gone."""
    if not driver.nodes:
        return ()
    return (*driver.common_nodes(), *(driver.nodes[uuid] for uuid in gpus if uuid in driver.nodes))


def _sockets(driver: NodeDriver, gpus: Sequence[str]) -> tuple[Mount, ...]:
    found = [driver.sockets[uuid] for uuid in gpus if uuid in driver.sockets]
    return tuple(read_only(socket, SOFTGPU / socket.name) for socket in found)


def _environment(driver: NodeDriver, gpus: Sequence[str]) -> dict[str, str]:
    """Keep NVIDIA's runtime hook, if there is one, from adding GPUs."""
    return {**driver.environment, "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
