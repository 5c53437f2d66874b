"""Deepomatic's device plugin: `deepomatic.com/shared-gpu: 1` is one of N equal parts of a GPU, without limits."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.parts import PARTS, equal_part
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest

PREFIX = "deepomatic.com/"
SHARED = PREFIX + "shared-gpu"
RESOURCES = frozenset({SHARED})


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect."""
    return next((field for key, field in fields.devices.items() if key.startswith(PREFIX)), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:
    """Read each container's number of parts of one GPU."""

    def share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
        for key, value in devices.items():
            if key.startswith(PREFIX) and key != SHARED:
                raise BadRequest(pods.limit_field(name, key), value, f"written as {SHARED}")
        return equal_part(pods.limit_field(name, SHARED), devices.get(SHARED, 0), PARTS.of(settings))

    return pods.make_request(pod, "deepomatic", share)


DIALECT = Dialect(
    "deepomatic",
    first_field,
    read_request,
    source="[Deepomatic's device plugin](https://github.com/Deepomatic/shared-gpu-nvidia-k8s-device-plugin)",
    forms=(DialectForm(f"`{SHARED}`", "That many of the GPU's `--parts`, without a limit on compute."),),
    resources=RESOURCES,
    resource_patterns=(r"deepomatic\.com/",),
    settings=(PARTS,),
)
