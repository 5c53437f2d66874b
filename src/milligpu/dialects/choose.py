"""Which dialect a pod speaks: at most one, and whoever writes two gets both fields named."""

from collections.abc import Callable
from dataclasses import dataclass

from milligpu.dialects import (
    bitfusion,
    deepomatic,
    gpumanager,
    gpushare,
    hami,
    kai,
    kubeshare,
    native,
    nvidia,
    profiles,
)
from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of asking."""

    name: str
    speaks: Callable[[pods.Words], str | None]
    """The first field in which a pod speaks it."""
    read: Callable[[pods.Json, Settings], PodRequest]


NATIVE = Dialect("native", native.speaks, native.read)
DIALECTS = (
    NATIVE,
    Dialect("hami", hami.speaks, hami.read),
    Dialect("nvidia", nvidia.speaks, nvidia.read),
    Dialect("kubeshare-v1", kubeshare.speaks_v1, kubeshare.read_v1),
    Dialect("kubeshare-v2", kubeshare.speaks_v2, kubeshare.read_v2),
    Dialect("gpu-manager", gpumanager.speaks, gpumanager.read),
    Dialect("gpushare", gpushare.speaks, gpushare.read),
    Dialect("deepomatic", deepomatic.speaks, deepomatic.read),
    Dialect("bitfusion", bitfusion.speaks, bitfusion.read),
    Dialect("kai", kai.speaks, kai.read),
)

RESOURCES = (
    frozenset({names.VGPU, names.VGPU_MEMORY})
    | nvidia.RESOURCES
    | hami.RESOURCES
    | gpumanager.RESOURCES
    | gpushare.RESOURCES
    | deepomatic.RESOURCES
    | bitfusion.RESOURCES
)
"""Every resource that some dialect asks with, beside the classes (`gpu-gold`)."""

_NVIDIA_OTHERS = ("nvidia.com/gpu", "nvidia.com/vgpu")


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:
    """What a pod asks for, whatever its dialect; BadRequest with the field, its value and what is allowed."""
    pods.refuse_elsewhere(pod)
    words = pods.words(pod)
    _refuse_typos(words)
    return profiles.narrow(pod, _spoken(words).read(pod, settings))


def _spoken(words: pods.Words) -> Dialect:
    if names.DIALECT in words.annotations:
        _refuse_unread(words)
        return NATIVE  # admission has brought it into our form; what it was made from may still be there
    found = {dialect: field for dialect in DIALECTS if (field := dialect.speaks(words))}
    by_name = {dialect.name: dialect for dialect in found}
    plugin = by_name.get("nvidia")
    if plugin and found[plugin].endswith(f"[{names.WHOLE_GPU}]") and by_name.keys() & {"native", "hami"}:
        del found[plugin]  # both know nvidia.com/gpu as theirs
    if len(found) > 1:
        (_, first), (second, field) = list(found.items())[:2]
        want = f"one dialect in a pod; {first} is another"
        raise BadRequest(field, f"{second.name} request", want)
    return next(iter(found), NATIVE)


def _refuse_unread(words: pods.Words) -> None:
    """Admission leaves no other system's resource behind: whoever wrote the mark was not admission."""
    for key, field in words.devices.items():
        if key in RESOURCES - {names.VGPU, names.VGPU_MEMORY, names.WHOLE_GPU}:
            hint = f"take {names.DIALECT} out: admission writes it"
            raise BadRequest(field, key, f"{names.VGPU} beside {names.DIALECT}", hint=hint)


def _refuse_typos(words: pods.Words) -> None:
    """`nvidia.com/gpu-mem` is nobody's resource, and must not be read as none."""
    for key, field in words.devices.items():
        if key.startswith(_NVIDIA_OTHERS) and key not in RESOURCES:
            known = sorted(name for name in RESOURCES if name.startswith("nvidia.com/"))
            raise BadRequest(field, key, f"one of {', '.join(known)}")
