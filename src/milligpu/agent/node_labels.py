"""Node labels for selectors and other tools: NVIDIA's names for what the node has, and its vGPU profiles. Pure."""

import re
from collections.abc import Mapping, Sequence

from milligpu.model import names
from milligpu.model.gpu import Gpu, SharingMode
from milligpu.model.units import WHOLE
from milligpu.model.vgpu import VgpuProfile, profile_of

_FAMILIES = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell", 3: "kepler"}
_FAMILIES_EXACT = {(7, 5): "turing", (8, 9): "ada-lovelace"}
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]+")
_LABEL_MAX = 63


def node_labels(gpus: Sequence[Gpu], driver: str, present: Mapping[str, str]) -> dict[str, str | None]:
    """Return the labels of a node that has those `present`; None removes one that no longer holds."""
    first = gpus[0] if gpus else None
    return {
        **_hardware(first, len(gpus)),
        **_driver(driver if first else ""),
        **{key: None for key in present if key.startswith(names.VGPU_PROFILE)},
        **{names.VGPU_PROFILE + profile.name: "true" for profile in _profiles(gpus)},
    }


def vgpu_type_label(
    gpus: Sequence[Gpu], present: str | None, written: str | None
) -> tuple[dict[str, str | None], str | None]:
    """Return the label `vgpu.type` to write and the value to remember as written by the agent.

    `present` is the label that the node has, and `written` what the agent remembers. Where they differ, somebody
    else wrote the label, and it stays.
    """
    if present not in {None, written}:
        return {}, None
    value = next((profile.label for profile in _profiles(gpus)), None)
    return {names.VGPU_TYPE: value}, value


def _profiles(gpus: Sequence[Gpu]) -> list[VgpuProfile]:
    return [profile for gpu in gpus if (profile := profile_of(gpu.model))]


def _hardware(first: Gpu | None, count: int) -> dict[str, str | None]:
    if first is None:
        return dict.fromkeys(names.HARDWARE_LABELS)
    shared = first.mode is SharingMode.SHARE
    values = (
        label_value(first.model),
        str(first.mib),
        str(count),
        gpu_family(first),
        str(WHOLE) if shared else "1",
        "milligpu" if shared else "none",
        str(first.capability.major),
        str(first.capability.minor),
        str(first.mode is SharingMode.MIG).lower(),
    )
    return dict(zip(names.HARDWARE_LABELS, values, strict=True))


def _driver(version: str) -> dict[str, str | None]:
    parts: list[str | None] = [*version.split("."), None, None, None] if version else [None] * 3
    return dict(zip(names.DRIVER_LABELS, (*parts[:3], version or None), strict=True))


def gpu_family(gpu: Gpu) -> str | None:
    """Return the name of the architecture, by compute capability."""
    pair = (gpu.capability.major, gpu.capability.minor)
    return _FAMILIES_EXACT.get(pair) or _FAMILIES.get(gpu.capability.major)


def label_value(text: str) -> str:
    """Turn text into a valid label value."""
    return _ILLEGAL.sub("-", text)[:_LABEL_MAX].strip("-._")
