"""GPU models: what a GPU reports about itself. A new model is an entry in `models.toml` and needs no code."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from milligpu.model.errors import BadRequest

# Compute capability 8.6 has tensor cores and bf16, and every current compiler still targets it.
DEFAULT_MODEL = "A10"


@dataclass(frozen=True, slots=True)
class Power:
    """Milliwatts: idle, the default limit, and the range in which the limit may be set."""

    idle: int
    default: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Heat:
    """Degrees Celsius: idle, under full load, where clocks slow down, where the GPU shuts down."""

    idle: int
    load: int
    slowdown: int
    shutdown: int


@dataclass(frozen=True, slots=True)
class Nvlink:
    """Number and generation of a GPU's links, and whether switches join more than four GPUs."""

    links: int
    version: int
    switched: bool


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU. Sizes are in bytes, clocks in kHz, as the driver API reports them."""

    key: str
    source: str
    name: str
    architecture: str
    memory: int
    context_memory: int
    capability: tuple[int, int]
    multiprocessors: int
    cores: int
    threads_per_multiprocessor: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int
    l2_bytes: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    pci_device: int
    pcie_generation: int
    pcie_width: int
    power: Power
    heat: Heat
    nvlink: Nvlink | None
    mig: bool
    gpus_per_board: int


@cache
def models() -> dict[str, GpuModel]:
    """All models by key."""
    text = resources.files("milligpu.softgpu").joinpath("models.toml").read_text()
    return {key: _model(key, entry) for key, entry in tomllib.loads(text).items()}


def _model(key: str, entry: dict[str, Any]) -> GpuModel:
    shared, nvlink = entry["shared-kib"], entry.get("nvlink")
    return GpuModel(
        key=key,
        source=entry["source"],
        name=entry["name"],
        architecture=entry["architecture"],
        memory=entry["memory-mib"] << 20,
        context_memory=entry["context-mib"] << 20,
        capability=(entry["capability"][0], entry["capability"][1]),
        multiprocessors=entry["multiprocessors"],
        cores=entry["multiprocessors"] * entry["cores-per-multiprocessor"],
        threads_per_multiprocessor=entry["threads-per-multiprocessor"],
        clock_khz=entry["clock-mhz"] * 1000,
        memory_clock_khz=entry["memory-clock-mhz"] * 1000,
        bus_width=entry["bus-width"],
        l2_bytes=entry["l2-kib"] << 10,
        shared_per_block=shared["block"] << 10,
        shared_per_block_optin=shared["optin"] << 10,
        shared_per_multiprocessor=shared["multiprocessor"] << 10,
        pci_device=entry["pci-device"],
        pcie_generation=entry["pcie"]["generation"],
        pcie_width=entry["pcie"]["width"],
        power=Power(**{name: watts * 1000 for name, watts in entry["watts"].items()}),
        heat=Heat(**entry["degrees"]),
        nvlink=Nvlink(**nvlink) if nvlink else None,
        mig=entry.get("mig", False),
        gpus_per_board=entry.get("gpus-per-board", 1),
    )


def find_model(name: str) -> GpuModel:
    """Find a model by name, ignoring case; a prefix that only one model has is enough."""
    wanted = name.lower()
    near = [model for key, model in models().items() if wanted and key.lower().startswith(wanted)]
    for model in near:
        if model.key.lower() == wanted or len(near) == 1:
            return model
    raise BadRequest("model", name, "one of " + ", ".join(sorted(models())))
