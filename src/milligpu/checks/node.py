"""The node itself: GPUs, driver, device nodes, directories, cgroups."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from milligpu.agent.attachments import our_libraries
from milligpu.agent.driver import NodeDriver, find_host_paths, locate_driver, open_node_nvml
from milligpu.agent.host_paths import HostPaths
from milligpu.agent.settings import AgentSettings
from milligpu.checks.result import CheckLevel, CheckResult, failed, passed, skipped, socket_error
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu import GpuState
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.health import assess_once
from milligpu.nvml.readings import Observation
from milligpu.tenancy.tenant import CUDA, NVML

_CGROUPS = Path("/sys/fs/cgroup")


def driver(settings: AgentSettings, env: Mapping[str, str]) -> Iterable[CheckResult]:
    """NVML answers, each GPU is healthy, and the driver files that containers need exist."""
    host = find_host_paths(settings.host_root, settings.driver_root, env)
    with open_node_nvml(host) as gpus:
        count = gpus.count()
        version = gpus.nvml.ask_system("nvmlSystemGetDriverVersion") or "unknown"
        if not count:
            yield failed(
                "driver", f"version {version} finds no GPU", "look at: dmesg; lspci | grep -i nvidia; nvidia-smi"
            )
            yield skipped("libraries", "needs a GPU")
            return
        yield passed("driver", f"version {version}, {count} GPUs")
        yield from (_health(reading) for reading in gpus.read())
        if gpus.handles():
            yield from _libraries_and_devices(gpus, env, host)
        else:
            yield skipped("libraries", "needs a GPU that answers")


def _health(reading: Observation) -> CheckResult:
    health = assess_once(reading)
    name, uuid = f"GPU {reading.index}", reading.uuid or "unknown"
    if health.state is GpuState.OK:
        return passed(name, f"{uuid} is healthy")
    return failed(name, f"{uuid} is {health.state}: {health.message}", "see docs/agent.md, When a GPU is unhealthy")


def _libraries_and_devices(gpus: NvmlGpus, env: Mapping[str, str], host: HostPaths | None) -> Iterable[CheckResult]:
    try:
        found = locate_driver(gpus, env, host)
    except MilligpuError as error:
        yield failed("libraries", error.message, error.hint)
        return
    yield _libraries(found)
    yield from _specification(found)
    yield from _sockets(found) if found.sockets else _device_nodes(found)


def _libraries(found: NodeDriver) -> CheckResult:
    missing = [
        name for name in (CUDA, NVML) if name not in found.libraries or not found.host.exists(found.libraries[name])
    ]
    if missing:
        return failed(
            "libraries", f"{', '.join(missing)} not found", "install the driver's CUDA and NVML libraries"
        )
    absent = [str(path) for path in our_libraries().values() if not path.exists()]
    if absent:
        return failed(
            "libraries", f"{', '.join(absent)} not found", "reinstall milligpu: its limits library is missing"
        )
    return passed("libraries", f"{CUDA} at {found.libraries[CUDA]}, limits library installed")


def _specification(found: NodeDriver) -> Iterable[CheckResult]:
    """NVIDIA's toolkit says which files a container needs, and its hooks can run."""
    if found.nvidia is None:
        return
    problem = found.refresh(found.nodes)
    fix = "install NVIDIA's container toolkit (nvidia-container-toolkit-base)"
    if problem:
        yield failed("CDI specification", problem, fix)
    elif found.nvidia.spec is None:
        message = "NVIDIA's container toolkit is not installed: containers get the libraries in the loader's cache"
        yield failed("CDI specification", message, fix, CheckLevel.WARNING)
    else:
        yield passed("CDI specification", f"{len(found.nvidia.spec.devices)} devices")


def _device_nodes(found: NodeDriver) -> Iterable[CheckResult]:
    for path in (*found.common_nodes(), *found.nodes.values()):
        if not os.access(path, os.R_OK | os.W_OK):
            fix = "nvidia-modprobe -u -c 0" if not Path(path).exists() else "run this command as root"
            yield failed("device nodes", f"{path} cannot be opened", fix)
            return
    yield passed("device nodes", ", ".join(found.nodes.values()))


def _sockets(found: NodeDriver) -> Iterable[CheckResult]:
    """Software GPUs have sockets instead of device nodes."""
    for path in found.sockets.values():
        error = socket_error(path)
        if error:
            yield failed("software GPU", error, "start it with: milligpu softgpu up")
            return
    yield passed("software GPU", f"{len(found.sockets)} in {next(iter(found.sockets.values())).parent}")


def directories(settings: AgentSettings) -> Iterable[CheckResult]:
    """The agent can write to its directories, or create them."""
    own = {"state directory": settings.state, "run directory": settings.run, "CDI directory": settings.cdi}
    for name, path in own.items():
        existing = next(each for each in (path, *path.parents) if each.exists())
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            yield passed(name, f"{path} is writable")
        else:
            yield failed(name, f"{existing} is not writable", "run the agent as root")


def cgroups() -> Iterable[CheckResult]:
    """The agent finds the pod of a process by its cgroup."""
    if (_CGROUPS / "cgroup.controllers").exists():
        yield passed("cgroups", "version 2")
    elif any((_CGROUPS / name).exists() for name in ("cpu", "cpu,cpuacct", "memory", "pids")):
        message = "version 1, which a kubelet from 1.35 on refuses by default"
        fix = "use cgroup version 2, or set failCgroupV1: false in the kubelet's configuration"
        yield failed("cgroups", message, fix, CheckLevel.WARNING)
    else:
        yield failed("cgroups", f"not mounted at {_CGROUPS}", f"mount -t cgroup2 none {_CGROUPS}")
