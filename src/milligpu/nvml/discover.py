"""Discover this machine's GPUs, as the inventory describes them."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import ComputeCapability, Gpu, GpuLink, SharingMode
from milligpu.model.units import WHOLE
from milligpu.model.versions import DottedVersion, parse_version
from milligpu.model.vgpu import profile_of
from milligpu.nvml.library import GpuLostError, Handle, Nvml
from milligpu.nvml.read import read_memory

# NVML's levels of the nearest common ancestor, by nvidia-smi's names.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SCOPE_NODE, _LINKS_MAX, _REMOTE_SWITCH = 0, 18, 2
_NUMA_WORDS = 4

_Answer = TypeVar("_Answer")


def discover_gpu(nvml: Nvml, handle: Handle) -> Gpu:
    """Describe one GPU; its links to others come from `discover_links`."""
    major, minor = nvml.try_ask("nvmlDeviceGetCudaComputeCapability", handle) or (7, 0)
    ecc = nvml.try_ask("nvmlDeviceGetEccMode", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    model = _text(nvml.ask("nvmlDeviceGetName", handle) or "unknown")
    uuid = nvml.ask("nvmlDeviceGetUUID", handle)
    if uuid is None:
        raise GpuLostError("NVML does not report its UUID")
    total, _ = read_memory(nvml, handle)
    profile = profile_of(model)
    return Gpu(
        uuid=_text(uuid),
        model=model,
        milli=profile.milli if profile else WHOLE,
        mib=total,
        numa=_numa(nvml, handle),
        capability=ComputeCapability(major, minor),
        ecc=bool(ecc and ecc[0]),
        mode=SharingMode.MIG if mig and mig[0] else SharingMode.SHARE,
    )


def discover_driver(nvml: Nvml) -> tuple[DottedVersion | None, DottedVersion | None]:
    """Return the version of the driver, and the latest version of CUDA that it supports."""
    driver = nvml.ask_system("nvmlSystemGetDriverVersion")
    cuda = nvml.ask_system("nvmlSystemGetCudaDriverVersion_v2")
    return (
        _version(_text(driver)) if driver else None,
        _version(f"{cuda // 1000}.{cuda % 1000 // 10}") if cuda else None,
    )


def _version(text: str) -> DottedVersion | None:
    try:
        return parse_version("version", text)
    except BadRequest:
        return None


def discover_links(nvml: Nvml, handles: dict[str, Handle]) -> dict[str, dict[str, GpuLink]]:
    """Return the best path from each GPU to each other one, by UUID; without GPUs that are lost."""
    buses = _unless_lost(handles, lambda each: _bus(nvml.try_ask("nvmlDeviceGetPciInfo", each)))
    at = {bus: uuid for uuid, bus in buses.items()}
    nvlinks = _unless_lost(handles, lambda each: _nvlinks(nvml, each, at))
    links: dict[str, dict[str, GpuLink]] = {uuid: {} for uuid in nvlinks}
    for one, other in itertools.permutations(nvlinks, 2):
        lanes = nvlinks[one].get(other, 0) or min(nvlinks[one].get("", 0), nvlinks[other].get("", 0))
        try:
            ancestor = nvml.try_ask("nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        except GpuLostError:
            continue
        links[one][other] = GpuLink("NV", lanes) if lanes else GpuLink(_ANCESTORS.get(ancestor, "SYS"), 0)
    return links


def _unless_lost(handles: dict[str, Handle], ask: Callable[[Handle], _Answer]) -> dict[str, _Answer]:
    found: dict[str, _Answer] = {}
    for uuid, handle in handles.items():
        with suppress(GpuLostError):
            found[uuid] = ask(handle)
    return found


def _nvlinks(nvml: Nvml, handle: Handle, buses: dict[str, str]) -> dict[str, int]:
    """Count the active NVLinks to each other GPU; links to a switch are under ""."""
    found: dict[str, int] = {}
    for link in range(_LINKS_MAX):
        if not nvml.try_ask("nvmlDeviceGetNvLinkState", handle, link):
            continue
        if nvml.try_ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_SWITCH:
            peer = ""
        else:
            peer = buses.get(_bus(nvml.try_ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)), "elsewhere")
        found[peer] = found.get(peer, 0) + 1
    return found


def _numa(nvml: Nvml, handle: Handle) -> int:
    """Return the GPU's NUMA node: from NVML, else from the kernel, else the first."""
    words = nvml.try_ask("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, _SCOPE_NODE)
    for at, word in enumerate(words or ()):
        if word:
            return at * 64 + (word & -word).bit_length() - 1
    bus = _bus(nvml.try_ask("nvmlDeviceGetPciInfo", handle)).lower()
    try:
        # The kernel writes the domain with four digits, NVML with eight.
        return max(0, int(Path(f"/sys/bus/pci/devices/{bus[-12:]}/numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def _bus(pci: object) -> str:
    return "" if pci is None else _text(getattr(pci, "busId", ""))


def _text(value: object) -> str:
    """Return text; older releases of the binding return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
