"""The kubelet and the container runtime: versions, sockets, CDI, and other GPU plugins."""

import re
from collections.abc import Iterable
from pathlib import Path

from milligpu.agent.settings import AgentSettings
from milligpu.checks.result import CheckResult, failed, passed, skipped, socket_error
from milligpu.kubelet.device_plugin import KUBELET_SOCKET, SOCKET_PREFIX
from milligpu.kubelet.pod_resources import PodResources
from milligpu.kubelet.runtime import RuntimeInfo, ask_runtime

# The first releases that read CDI devices from the kubelet, and that do so by default.
_CONTAINERD, _CONTAINERD_ON, _CRIO = (1, 7), (2, 0), (1, 23)
_DEFAULT_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
# Sockets of other systems' plugins for the same GPUs.
_OTHERS = re.compile(r"nvidia|gpu|vcore|vmemory|cuda", re.I)
RUNTIME_FIX = "start the container runtime, or name its socket with --runtime-socket"
KUBELET_FIX = "start the kubelet, or name its directory with --kubelet-dir"


async def runtime(path: Path, cdi: Path) -> Iterable[CheckResult]:
    """The container runtime answers and reads the agent's CDI files."""
    error = socket_error(path)
    if error:
        return [failed("container runtime", error, RUNTIME_FIX), skipped("CDI", "needs the container runtime")]
    found = await ask_runtime(path)
    return [_version(found), _cdi(found, cdi)]


def _version(found: RuntimeInfo) -> CheckResult:
    least = _CONTAINERD if found.name == "containerd" else _CRIO
    text = f"{found.name} {found.version}"
    if found.release >= least:
        return passed("container runtime", text)
    return failed("container runtime", text, f"upgrade to {least[0]}.{least[1]} or later, which supports CDI")


def _cdi(found: RuntimeInfo, path: Path) -> CheckResult:
    by_default = found.name != "containerd" or found.release >= _CONTAINERD_ON
    if not found.config.get("enableCDI", by_default):
        fix = "set enable_cdi = true under the CRI plugin in containerd's config.toml, and restart containerd"
        return failed("CDI", f"disabled in {found.name}", fix)
    known = [str(each) for each in found.config.get("cdiSpecDirs") or _DEFAULT_CDI_DIRS]
    # On most machines /var/run is a link to /run.
    if path.resolve() not in {Path(each).resolve() for each in known}:
        fix = f"run the agent with --cdi-dir {known[-1]}, or add {path} to the runtime's cdi_spec_dirs"
        return failed("CDI", f"{found.name} reads {', '.join(known)}, not {path}", fix)
    return passed("CDI", f"enabled, from {path}")


async def pod_resources(settings: AgentSettings) -> Iterable[CheckResult]:
    """The kubelet's pod resources API answers."""
    error = socket_error(settings.pod_resources)
    if error:
        return [failed("pod resources", error, KUBELET_FIX)]
    resources = PodResources(settings.pod_resources)
    try:
        held = await resources.held()
    finally:
        await resources.close()
    return [passed("pod resources", f"{settings.pod_resources} answers, {len(held)} containers hold devices")]


def device_plugins(settings: AgentSettings) -> Iterable[CheckResult]:
    """The kubelet accepts device plugins, and no other GPU plugin runs."""
    return [_registration(settings.device_plugins / KUBELET_SOCKET), _others(settings.device_plugins)]


def _registration(path: Path) -> CheckResult:
    error = socket_error(path)
    if error:
        return failed("device plugins", error, KUBELET_FIX)
    return passed("device plugins", f"{path} answers")


def _others(directory: Path) -> CheckResult:
    ours = (SOCKET_PREFIX, KUBELET_SOCKET)
    names = sorted(each.name for each in directory.glob("*.sock") if not each.name.startswith(ours))
    others = [name for name in names if _OTHERS.search(name)]
    if others:
        fix = "remove the other plugin (its DaemonSet) from this node, or both would allocate the same GPU"
        return failed("other GPU plugins", f"sockets in {directory}: {', '.join(others)}", fix)
    return passed("other GPU plugins", "none")
