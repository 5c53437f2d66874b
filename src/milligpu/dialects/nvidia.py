"""NVIDIA's device plugin: `nvidia.com/gpu` is whole GPUs, untouched; `nvidia.com/gpu.shared` a slice of one."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.parts import part_of_card
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, WHOLE, parse_whole

SHARED = "nvidia.com/gpu.shared"
"""What the plugin calls GPUs that it hands out several times over."""
RESOURCES = frozenset({names.WHOLE_GPU, SHARED})


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect."""
    return next((field for key, field in words.devices.items() if key in RESOURCES), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:
    """Whole GPUs, or slices without limits."""

    def share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        if wants.keys() >= RESOURCES:
            want = f"either {names.WHOLE_GPU} or {SHARED}"
            raise BadRequest(pods.field(name, SHARED), wants[SHARED], want)
        if SHARED in wants:
            return part_of_card(pods.field(name, SHARED), wants[SHARED], settings.parts)
        count = parse_whole(pods.field(name, names.WHOLE_GPU), wants.get(names.WHOLE_GPU, 0), 0, GPUS_MAX)
        return ShareRequest(count, WHOLE) if count else None

    return pods.request(pod, "nvidia", share)
