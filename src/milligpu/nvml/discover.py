"""Which cards this machine has: as the inventory wants them."""

from pathlib import Path

from milligpu.devices.nvml import Handle, Nvml
from milligpu.devices.vgpu import profile_of
from milligpu.model.gpu import Capability, Gpu, Link, Mode
from milligpu.model.units import WHOLE, Mib

# NVML's levels of the nearest common ancestor, by nvidia-smi's names.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SCOPE_NODE, _LINKS_MAX, _REMOTE_SWITCH = 0, 18, 2
_NUMA_WORDS = 4


def discover_gpu(nvml: Nvml, handle: Handle) -> Gpu:
    """One card; its links to others come from `discover_links`."""
    major, minor = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle) or (7, 0)
    ecc = nvml.ask("nvmlDeviceGetEccMode", handle)
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    model = _text(nvml.ask("nvmlDeviceGetName", handle))
    profile = profile_of(model)
    return Gpu(
        uuid=_text(nvml.ask("nvmlDeviceGetUUID", handle)),
        model=model,
        milli=profile.milli if profile else WHOLE,
        mib=Mib(nvml.ask("nvmlDeviceGetMemoryInfo", handle).total >> 20),
        numa=_numa(nvml, handle),
        capability=Capability(major, minor),
        ecc=bool(ecc and ecc[0]),
        mode=Mode.MIG if mig and mig[0] else Mode.SHARE,
    )


def discover_links(nvml: Nvml, handles: dict[str, Handle]) -> dict[str, dict[str, Link]]:
    """The best path from each card to each other one, by UUID."""
    buses = {_bus(nvml.ask("nvmlDeviceGetPciInfo", handle)): uuid for uuid, handle in handles.items()}
    nvlinks = {uuid: _nvlinks(nvml, handle, buses) for uuid, handle in handles.items()}
    links: dict[str, dict[str, Link]] = {uuid: {} for uuid in handles}
    for one, handle in handles.items():
        for other, peer in handles.items():
            if one == other:
                continue
            lanes = nvlinks[one].get(other, 0) or min(nvlinks[one].get("", 0), nvlinks[other].get("", 0))
            ancestor = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handle, peer)
            links[one][other] = Link("NV", lanes) if lanes else Link(_ANCESTORS.get(ancestor, "SYS"), 0)
    return links


def _nvlinks(nvml: Nvml, handle: Handle, buses: dict[str, str]) -> dict[str, int]:
    """How many active links lead to each card; those to a switch are under ""."""
    found: dict[str, int] = {}
    for link in range(_LINKS_MAX):
        if not nvml.ask("nvmlDeviceGetNvLinkState", handle, link):
            continue
        if nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_SWITCH:
            peer = ""
        else:
            peer = buses.get(_bus(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)), "elsewhere")
        found[peer] = found.get(peer, 0) + 1
    return found


def _numa(nvml: Nvml, handle: Handle) -> int:
    """The memory node nearest to the card: from NVML, else from the kernel, else the first."""
    words = nvml.ask("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, _SCOPE_NODE)
    for at, word in enumerate(words or ()):
        if word:
            return at * 64 + (word & -word).bit_length() - 1
    bus = _bus(nvml.ask("nvmlDeviceGetPciInfo", handle)).lower()
    try:
        # The kernel writes the domain with four digits, NVML with eight.
        return max(0, int(Path(f"/sys/bus/pci/devices/{bus[-12:]}/numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def _bus(pci: object) -> str:
    return "" if pci is None else _text(getattr(pci, "busId", ""))


def _text(value: object) -> str:
    """Text; older releases of the binding answer bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
