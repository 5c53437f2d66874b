"""NVIDIA's device plugin: `nvidia.com/gpu` is whole GPUs, `nvidia.com/gpu.shared` is a part of one."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.parts import PARTS, equal_part
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, WHOLE, parse_whole

SHARED = "nvidia.com/gpu.shared"
"""The plugin's name for GPUs that it offers several times."""
RESOURCES = frozenset({names.WHOLE_GPU, SHARED})


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect."""
    return next((field for key, field in fields.devices.items() if key in RESOURCES), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:
    """Read each container's whole GPUs, or its parts of one GPU without limits."""

    def share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
        if devices.keys() >= RESOURCES:
            want = f"left out where {names.WHOLE_GPU} is set"
            raise BadRequest(pods.limit_field(name, SHARED), devices[SHARED], want)
        if SHARED in devices:
            return equal_part(pods.limit_field(name, SHARED), devices[SHARED], PARTS.of(settings))
        count = parse_whole(pods.limit_field(name, names.WHOLE_GPU), devices.get(names.WHOLE_GPU, 0), 0, GPUS_MAX)
        return ShareRequest(count, WHOLE) if count else None

    return pods.make_request(pod, "nvidia", share)


DIALECT = Dialect(
    "nvidia",
    first_field,
    read_request,
    source="[NVIDIA's device plugin](https://github.com/NVIDIA/k8s-device-plugin)",
    forms=(
        DialectForm("`nvidia.com/gpu`", "Whole GPUs."),
        DialectForm("`nvidia.com/gpu.shared`", "That many of the GPU's `--parts`, without a limit on compute."),
    ),
    resources=RESOURCES,
    resource_patterns=(r"nvidia\.com/gpu",),
    settings=(PARTS,),
)
