"""The node itself: cards, driver, device nodes, folders, cgroups."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from milligpu.agent.tenant import CUDA, NVML
from milligpu.devices.cards import Cards
from milligpu.devices.health import Record, judge, note_observation
from milligpu.devices.reading import Observation
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu import State
from milligpu.node.attachments import our_libraries
from milligpu.node.doctor.finding import Finding, bad, good, unreachable
from milligpu.node.driver import Driver, locate_driver
from milligpu.node.settings import Settings

_CGROUPS = Path("/sys/fs/cgroup")


def driver(env: Mapping[str, str]) -> Iterable[Finding]:
    """NVML answers, each card is well, and what containers need of the driver is there."""
    with Cards() as cards:
        count = cards.nvml.count()
        version = cards.nvml.ask("nvmlSystemGetDriverVersion")
        if not count:
            yield bad("driver", f"version {version}, but no GPU", "see dmesg, lspci | grep -i nvidia, nvidia-smi")
            return
        yield good("driver", f"version {version}, {count} GPUs")
        yield from (_health(seen) for seen in cards.read())
        if cards.handles():
            yield from _libraries_and_devices(cards, env)


def _health(seen: Observation) -> Finding:
    health = judge(note_observation(Record(), seen, now=0.0))
    what, name = f"gpu {seen.index}", seen.uuid or "unknown"
    if health.state is State.OK:
        return good(what, f"{name} is healthy")
    return bad(what, f"{name} is {health.state}: {health.reason}", "see docs/agent.md, When a GPU is unhealthy")


def _libraries_and_devices(cards: Cards, env: Mapping[str, str]) -> Iterable[Finding]:
    try:
        found = locate_driver(cards, env)
    except MilligpuError as error:
        yield bad("libraries", error.message, error.hint)
        return
    yield _libraries(found)
    yield from _sockets(found) if found.sockets else _device_nodes(found)


def _libraries(found: Driver) -> Finding:
    missing = [name for name in (CUDA, NVML) if name not in found.libraries or not found.libraries[name].exists()]
    if missing:
        return bad("libraries", f"{', '.join(missing)} not found", "install the driver's CUDA and NVML libraries")
    lost = [str(path) for path in our_libraries().values() if not path.exists()]
    if lost:
        return bad("libraries", f"{', '.join(lost)} not found", "install milligpu anew: its limits library is gone")
    return good("libraries", f"{CUDA} at {found.libraries[CUDA]}, and the limits library")


def _device_nodes(found: Driver) -> Iterable[Finding]:
    for path in (*found.common, *found.nodes.values()):
        if not os.access(path, os.R_OK | os.W_OK):
            fix = "nvidia-modprobe -u -c 0" if not Path(path).exists() else "run this as root"
            yield bad("device nodes", f"{path} cannot be opened", fix)
            return
    yield good("device nodes", ", ".join(found.nodes.values()))


def _sockets(found: Driver) -> Iterable[Finding]:
    """Software cards are sockets instead of device nodes."""
    for path in found.sockets.values():
        trouble = unreachable(path)
        if trouble:
            yield bad("software GPU", trouble, "milligpu softgpu up")
            return
    yield good("software GPU", f"{len(found.sockets)} in {next(iter(found.sockets.values())).parent}")


def folders(settings: Settings) -> Iterable[Finding]:
    """Where the agent and the kubelet meet, and where its own files are."""
    own = {"state folder": settings.state, "run folder": settings.run, "CDI folder": settings.cdi}
    for what, folder in own.items():
        there = next(each for each in (folder, *folder.parents) if each.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            yield good(what, f"{folder} can be written")
        else:
            yield bad(what, f"{there} cannot be written", "run the agent as root")


def cgroups() -> Iterable[Finding]:
    """By them a process's pod is known."""
    if (_CGROUPS / "cgroup.controllers").exists():
        yield good("cgroups", "version 2")
    elif any((_CGROUPS / name).exists() for name in ("cpu", "cpu,cpuacct", "memory", "pids")):
        yield good("cgroups", "version 1 (a kubelet from 1.35 on needs failCgroupV1: false for it)")
    else:
        yield bad("cgroups", f"none at {_CGROUPS}", f"mount -t cgroup2 none {_CGROUPS}")
