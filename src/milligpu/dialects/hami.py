"""HAMi: a number of vGPUs (`nvidia.com/gpu`), each with memory in MiB or percent, and a percentage of the cores.

Memory that is not asked for is all of the card's; cores that are not asked for are not limited.
"""

from collections.abc import Mapping
from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.model.qos import PRIORITY_MAX, Strategy
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import Requirements, parse_model
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_whole

COUNT = names.WHOLE_GPU
MEMORY = "nvidia.com/gpumem"
MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
RESOURCES = frozenset({MEMORY, MEMORY_PERCENT, CORES, PRIORITY})

USE_TYPE, NO_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NO_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_INDEX, NO_INDEX = "nvidia.com/use-gpuindexes", "nvidia.com/nouse-gpuindexes"
NUMA = "nvidia.com/numa-bind"
MODE = "nvidia.com/vgpu-mode"
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
ANNOTATIONS = frozenset(
    {USE_TYPE, NO_TYPE, USE_UUID, NO_UUID, USE_INDEX, NO_INDEX, NUMA, MODE, NODE_POLICY, GPU_POLICY}
)

_PERCENT = WHOLE // 100
# "numa" there prefers cards of one NUMA node, as our topology strategy does.
_STRATEGIES = {
    "binpack": Strategy.BEST_FIT,
    "spread": Strategy.SPREAD,
    "topology-aware": Strategy.TOPOLOGY,
    "numa": Strategy.TOPOLOGY,
    "numa-first": Strategy.TOPOLOGY,
}


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect; its annotations count beside a GPU only."""
    own = next((field for key, field in words.devices.items() if key in RESOURCES), None)
    if own is not None or COUNT not in words.devices:
        return own
    return next((f"metadata.annotations[{key}]" for key in words.annotations if key in ANNOTATIONS), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """vGPUs per container, with what the annotations require of the cards."""
    notes = pods.annotations(pod)
    _refuse_what_is_not_here(notes)
    request = pods.request(pod, "hami", _share)
    return replace(
        request,
        priority=_priority(pod),
        strategy=_strategy(notes),
        requirements=_requirements(notes),
    )


def _share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
    asked = {key: wants[key] for key in (MEMORY, MEMORY_PERCENT, CORES) if key in wants}
    # HAMi's own webhook adds a count of 1 where memory or cores stand alone.
    count = parse_whole(pods.field(name, COUNT), wants.get(COUNT, 1 if asked else 0), 0, GPUS_MAX)
    if count == 0:
        if asked:
            raise BadRequest(pods.field(name, COUNT), wants[COUNT], f"1 to {GPUS_MAX} beside {', '.join(asked)}")
        return None
    cores = parse_whole(pods.field(name, CORES), wants.get(CORES, 0), 0, 100)
    mib, percent = _memory(name, wants)
    if percent == 100 and cores in {0, 100}:
        return ShareRequest(count, WHOLE)
    return ShareRequest(
        count=count,
        milli=Milli(cores * _PERCENT) if cores else None,
        mib=mib,
        card_memory=None if mib is not None else Milli(percent * _PERCENT),
        limit=Milli(cores * _PERCENT) if cores else WHOLE,
    )


def _memory(name: str, wants: Mapping[str, object]) -> tuple[Mib | None, int]:
    """MiB, or else a percentage of the card."""
    mib = parse_whole(pods.field(name, MEMORY), wants.get(MEMORY, 0), 0, MIB_MAX)
    if MEMORY_PERCENT not in wants:
        return (Mib(mib), 0) if mib else (None, 100)
    field = pods.field(name, MEMORY_PERCENT)
    if mib:
        raise BadRequest(field, wants[MEMORY_PERCENT], f"either {MEMORY} or a percentage, not both")
    return None, parse_whole(field, wants[MEMORY_PERCENT], 1, 100)


def _priority(pod: pods.Json) -> int:
    """0 is high there and 1 low; the pod's is that of its highest container."""
    found = 1
    for name, _, container in pods.containers(pod):
        wants = pods.extended(name, container)
        found = min(found, parse_whole(pods.field(name, PRIORITY), wants.get(PRIORITY, 1), 0, 1))
    return 0 if found else PRIORITY_MAX


def _strategy(notes: Mapping[str, str]) -> Strategy | None:
    """The card's policy goes before the node's: we choose both in one step."""
    found: Strategy | None = None
    for key in (NODE_POLICY, GPU_POLICY):
        text = notes.get(key)
        if text is not None:
            if text not in _STRATEGIES:
                raise BadRequest(key, text, " or ".join(_STRATEGIES))
            found = _STRATEGIES[text]
    return found


def _requirements(notes: Mapping[str, str]) -> Requirements:
    return Requirements(
        numa=pods.optional(notes, NUMA, _parse_bool) or False,
        models=pods.optional(notes, USE_TYPE, _parse_types),
        models_not=pods.optional(notes, NO_TYPE, _parse_types) or (),
        uuids=pods.optional(notes, USE_UUID, _parse_uuids),
        uuids_not=pods.optional(notes, NO_UUID, _parse_uuids) or (),
    )


def _parse_types(field: str, value: object) -> tuple[str, ...]:
    """Names by comma; HAMi's own listing puts the vendor before the product ("NVIDIA-Tesla P4")."""
    return tuple(
        parse_model(field, name.strip().removeprefix("NVIDIA-")) for name in str(value).split(",") if name.strip()
    ) or _nothing(field, value)


def _parse_uuids(field: str, value: object) -> tuple[str, ...]:
    return tuple(parse_uuid(field, uuid.strip()) for uuid in str(value).split(",") if uuid.strip()) or _nothing(
        field, value
    )


def _nothing(field: str, value: object) -> tuple[str, ...]:
    raise BadRequest(field, value, "names separated by commas")


def _parse_bool(field: str, value: object) -> bool:
    words = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
    if str(value).lower() not in words:
        raise BadRequest(field, value, "true or false")
    return words[str(value).lower()]


def _refuse_what_is_not_here(notes: Mapping[str, str]) -> None:
    """Better a refusal than a card that was excluded, or a share where a hardware partition was asked for."""
    for key in (USE_INDEX, NO_INDEX):
        if key in notes:
            raise BadRequest(key, notes[key], f"cards by UUID ({USE_UUID}, {NO_UUID}): an index does not last")
    mode = notes.get(MODE)
    if mode is not None and not any(word in mode for word in ("hami-core", "mps")):
        want = "hami-core or mps: shares are held by software here"
        raise BadRequest(MODE, mode, want, hint="without this annotation the same request is a share of a card")
