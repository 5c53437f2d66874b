"""Node labels for selectors and other tools: NVIDIA's names for what the node has, and its vGPU profile. Pure."""

import re
from collections.abc import Sequence

from milligpu.devices.vgpu import profile_of
from milligpu.model.gpu import Gpu, Mode
from milligpu.model.units import WHOLE

PREFIX = "nvidia.com/"
VGPU_TYPE = "vgpu.type"
"""Which profile a vGPU node has; pods choose one with a node selector."""

_FAMILIES = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell", 3: "kepler"}
_FAMILIES_EXACT = {(7, 5): "turing", (8, 9): "ada-lovelace"}
_HARDWARE = (
    "gpu.product",
    "gpu.memory",
    "gpu.count",
    "gpu.family",
    "gpu.replicas",
    "gpu.sharing-strategy",
    "gpu.compute.major",
    "gpu.compute.minor",
    "mig.capable",
)
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]+")
_LABEL_MAX = 63


def labels(gpus: Sequence[Gpu], driver: str) -> dict[str, str | None]:
    """The node's labels; None takes one away that no longer holds."""
    first = gpus[0] if gpus else None
    profile = profile_of(first.model) if first else None
    return {
        **{PREFIX + key: value for key, value in _hardware(first, len(gpus)).items()},
        **{PREFIX + key: value for key, value in _driver(driver if first else "").items()},
        VGPU_TYPE: profile.label if profile else None,
    }


def _hardware(first: Gpu | None, count: int) -> dict[str, str | None]:
    if first is None:
        return dict.fromkeys(_HARDWARE)
    shared = first.mode is Mode.SHARE
    values = (
        label_value(first.model),
        str(first.mib),
        str(count),
        family(first),
        str(WHOLE) if shared else "1",
        "milligpu" if shared else "none",
        str(first.capability.major),
        str(first.capability.minor),
        str(first.mode is Mode.MIG).lower(),
    )
    return dict(zip(_HARDWARE, values, strict=True))


def _driver(version: str) -> dict[str, str | None]:
    parts: list[str | None] = [*version.split("."), None, None, None] if version else [None] * 3
    keys = ("major", "minor", "revision")
    found = {f"cuda.driver-version.{key}": part for key, part in zip(keys, parts, strict=False)}
    return {**found, "cuda.driver-version.full": version or None}


def family(gpu: Gpu) -> str | None:
    """The architecture's name by compute capability."""
    pair = (gpu.capability.major, gpu.capability.minor)
    return _FAMILIES_EXACT.get(pair) or _FAMILIES.get(gpu.capability.major)


def label_value(text: str) -> str:
    """Text as a label may have it."""
    return _ILLEGAL.sub("-", text)[:_LABEL_MAX].strip("-._")
