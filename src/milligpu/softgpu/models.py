"""Device models: what a card says about itself. They are data (`models.toml`): adding one needs no code."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from milligpu.model.errors import BadRequest

# Compute capability 8.6: tensor-core shapes and bf16, and every current compiler still targets it.
DEFAULT_MODEL = "A10"


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of card. Sizes are in bytes, clocks in kHz, as the driver API reports them."""

    key: str
    name: str
    memory: int
    context_memory: int
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    clock_khz: int
    memory_clock_khz: int
    bus_width: int
    l2_bytes: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int


@cache
def models() -> dict[str, Model]:
    """All models by name."""
    text = resources.files("milligpu.softgpu").joinpath("models.toml").read_text()
    found: dict[str, Model] = {}
    for key, entry in tomllib.loads(text).items():
        shared = entry["shared-kib"]
        found[key] = Model(
            key=key,
            name=entry["name"],
            memory=entry["memory-mib"] << 20,
            context_memory=entry["context-mib"] << 20,
            capability=(entry["capability"][0], entry["capability"][1]),
            multiprocessors=entry["multiprocessors"],
            threads_per_multiprocessor=entry["threads-per-multiprocessor"],
            clock_khz=entry["clock-mhz"] * 1000,
            memory_clock_khz=entry["memory-clock-mhz"] * 1000,
            bus_width=entry["bus-width"],
            l2_bytes=entry["l2-kib"] << 10,
            shared_per_block=shared["block"] << 10,
            shared_per_block_optin=shared["optin"] << 10,
            shared_per_multiprocessor=shared["multiprocessor"] << 10,
        )
    return found


def find_model(name: str) -> Model:
    """The model of this name, whatever its case."""
    for key, model in models().items():
        if key.lower() == name.lower():
            return model
    raise BadRequest("model", name, "one of " + ", ".join(sorted(models())))
