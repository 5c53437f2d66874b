"""Discover this machine's GPUs, as the inventory describes them."""

from pathlib import Path

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import ComputeCapability, Gpu, GpuLink, SharingMode
from milligpu.model.units import WHOLE, Mib
from milligpu.model.versions import DottedVersion, parse_version
from milligpu.model.vgpu import profile_of
from milligpu.nvml.library import GpuLostError, Handle, Nvml

# NVML's levels of the nearest common ancestor, by nvidia-smi's names.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SCOPE_NODE, _LINKS_MAX, _REMOTE_SWITCH = 0, 18, 2
_NUMA_WORDS = 4


def discover_gpu(nvml: Nvml, handle: Handle) -> Gpu:
    """Describe one GPU; its links to others come from `discover_links`."""
    major, minor = nvml.try_ask("nvmlDeviceGetCudaComputeCapability", handle) or (7, 0)
    ecc = nvml.try_ask("nvmlDeviceGetEccMode", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    model = _text(nvml.ask("nvmlDeviceGetName", handle))
    uuid, memory = nvml.ask("nvmlDeviceGetUUID", handle), nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if uuid is None or memory is None:
        raise GpuLostError("NVML does not report its UUID or memory")
    profile = profile_of(model)
    return Gpu(
        uuid=_text(uuid),
        model=model,
        milli=profile.milli if profile else WHOLE,
        mib=Mib(memory.total >> 20),
        numa=_numa(nvml, handle),
        capability=ComputeCapability(major, minor),
        ecc=bool(ecc and ecc[0]),
        mode=SharingMode.MIG if mig and mig[0] else SharingMode.SHARE,
    )


def discover_driver(nvml: Nvml) -> tuple[DottedVersion | None, DottedVersion | None]:
    """Return the version of the driver, and the latest version of CUDA that it supports."""
    driver = nvml.try_ask("nvmlSystemGetDriverVersion")
    cuda = nvml.try_ask("nvmlSystemGetCudaDriverVersion_v2")
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
    """Return the best path from each GPU to each other one, by UUID."""
    buses = {_bus(nvml.try_ask("nvmlDeviceGetPciInfo", handle)): uuid for uuid, handle in handles.items()}
    nvlinks = {uuid: _nvlinks(nvml, handle, buses) for uuid, handle in handles.items()}
    links: dict[str, dict[str, GpuLink]] = {uuid: {} for uuid in handles}
    for one, handle in handles.items():
        for other, peer in handles.items():
            if one == other:
                continue
            lanes = nvlinks[one].get(other, 0) or min(nvlinks[one].get("", 0), nvlinks[other].get("", 0))
            ancestor = nvml.try_ask("nvmlDeviceGetTopologyCommonAncestor", handle, peer)
            links[one][other] = GpuLink("NV", lanes) if lanes else GpuLink(_ANCESTORS.get(ancestor, "SYS"), 0)
    return links


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
