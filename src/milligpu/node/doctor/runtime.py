"""The kubelet and the container runtime: what they must offer, and who else wants the cards."""

import re
from collections.abc import Iterable
from pathlib import Path

from milligpu.kubelet.device_plugin import KUBELET_SOCKET, SOCKET_PREFIX
from milligpu.kubelet.pod_resources import PodResources
from milligpu.kubelet.runtime import Runtime, ask_runtime
from milligpu.node.doctor.finding import Finding, bad, good, unreachable
from milligpu.node.settings import Settings

# The first releases that read CDI devices from the kubelet, and that do so without being told.
_CONTAINERD, _CONTAINERD_ON, _CRIO = (1, 7), (2, 0), (1, 23)
_DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# Sockets of other systems' plugins for the same cards.
_OTHERS = re.compile(r"nvidia|gpu|vcore|vmemory|cuda", re.I)
RUNTIME_FIX = "start containerd; where its socket is elsewhere, name it with --runtime-socket"
KUBELET_FIX = "start the kubelet; where it lives elsewhere, name its folder with --kubelet-dir"


async def runtime(where: Path, cdi: Path) -> Iterable[Finding]:
    """The container runtime, and whether it reads our CDI files."""
    trouble = unreachable(where)
    if trouble:
        return [bad("container runtime", trouble, RUNTIME_FIX)]
    found = await ask_runtime(where)
    return [_version(found), _cdi(found, cdi)]


def _version(found: Runtime) -> Finding:
    least = _CONTAINERD if found.name == "containerd" else _CRIO
    text = f"{found.name} {found.version}"
    if found.release >= least:
        return good("container runtime", text)
    return bad("container runtime", text, f"upgrade it to {least[0]}.{least[1]} or later: it knows no CDI")


def _cdi(found: Runtime, folder: Path) -> Finding:
    by_default = found.name != "containerd" or found.release >= _CONTAINERD_ON
    if not found.config.get("enableCDI", by_default):
        fix = "set enable_cdi = true under the CRI plugin in containerd's config.toml, and restart containerd"
        return bad("CDI", f"{found.name} has it off", fix)
    known = [str(each) for each in found.config.get("cdiSpecDirs") or _DEFAULT_FOLDERS]
    if _real(folder) not in {_real(Path(each)) for each in known}:
        fix = f"run the agent with --cdi-dir {known[-1]}, or add {folder} to the runtime's cdi_spec_dirs"
        return bad("CDI", f"{found.name} looks in {', '.join(known)}, not in {folder}", fix)
    return good("CDI", f"on, from {folder}")


def _real(folder: Path) -> Path:
    """/var/run is /run on most machines."""
    return folder.resolve()


async def pod_resources(settings: Settings) -> Iterable[Finding]:
    """The API that says who holds what."""
    trouble = unreachable(settings.pod_resources)
    if trouble:
        return [bad("pod resources", trouble, KUBELET_FIX)]
    resources = PodResources(settings.pod_resources)
    try:
        held = await resources.held()
    finally:
        await resources.close()
    return [good("pod resources", f"{settings.pod_resources} answers, {len(held)} containers hold devices")]


def device_plugins(settings: Settings) -> Iterable[Finding]:
    """Where plugins register, and who else did."""
    return [_registration(settings.device_plugins / KUBELET_SOCKET), _others(settings.device_plugins)]


def _registration(path: Path) -> Finding:
    trouble = unreachable(path)
    if trouble:
        return bad("device plugins", trouble, KUBELET_FIX)
    return good("device plugins", f"{path} answers")


def _others(folder: Path) -> Finding:
    ours = (SOCKET_PREFIX, KUBELET_SOCKET)
    names = sorted(each.name for each in folder.glob("*.sock") if not each.name.startswith(ours))
    others = [name for name in names if _OTHERS.search(name)]
    if others:
        fix = "take the other plugin (its DaemonSet) off this node: two would give the same card twice"
        return bad("other GPU plugins", f"sockets in {folder}: {', '.join(others)}", fix)
    return good("other GPU plugins", "none")
