"""HAMi: a number of vGPUs (`nvidia.com/gpu`), each with memory in MiB or percent, and a percentage of the cores.

Without an amount, memory is all that the GPU has, and cores are not limited.
"""

from collections.abc import Mapping
from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import parse_uuid
from milligpu.model.policy import PRIORITY_MAX, PlacementStrategy
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
# HAMi's "numa" prefers GPUs of one NUMA node, as the topology strategy does.
_STRATEGIES = {
    "binpack": PlacementStrategy.BEST_FIT,
    "spread": PlacementStrategy.SPREAD,
    "topology-aware": PlacementStrategy.TOPOLOGY,
    "numa": PlacementStrategy.TOPOLOGY,
    "numa-first": PlacementStrategy.TOPOLOGY,
}


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect, or next to `nvidia.com/gpu` its first annotation."""
    own = next((field for key, field in fields.devices.items() if key in RESOURCES), None)
    if own is not None or COUNT not in fields.devices:
        return own
    return next((f"metadata.annotations[{key}]" for key in fields.annotations if key in ANNOTATIONS), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read each container's GPUs, and from annotations what they must be like."""
    notes = pods.annotations(pod)
    _refuse_what_is_not_here(notes)
    request = pods.make_request(pod, "hami", _share)
    return replace(
        request,
        priority=_priority(pod),
        strategy=_strategy(notes),
        requirements=_requirements(notes),
    )


def _share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
    asked = {key: devices[key] for key in (MEMORY, MEMORY_PERCENT, CORES) if key in devices}
    # HAMi's own webhook adds a count of 1 where memory or cores stand alone.
    count = parse_whole(pods.limit_field(name, COUNT), devices.get(COUNT, 1 if asked else 0), 0, GPUS_MAX)
    if count == 0:
        if asked:
            raise BadRequest(
                pods.limit_field(name, COUNT),
                devices[COUNT],
                f"from 1 to {GPUS_MAX} together with {', '.join(asked)}",
            )
        return None
    cores = parse_whole(pods.limit_field(name, CORES), devices.get(CORES, 0), 0, 100)
    mib, percent = _memory(name, devices)
    if percent == 100 and cores in {0, 100}:
        return ShareRequest(count, WHOLE)
    return ShareRequest(
        count=count,
        milli=Milli(cores * _PERCENT) if cores else None,
        mib=mib,
        card_memory=None if mib is not None else Milli(percent * _PERCENT),
        limit=Milli(cores * _PERCENT) if cores else WHOLE,
    )


def _memory(name: str, devices: Mapping[str, object]) -> tuple[Mib | None, int]:
    """Return the memory in MiB, or else as a percentage of the GPU's."""
    mib = parse_whole(pods.limit_field(name, MEMORY), devices.get(MEMORY, 0), 0, MIB_MAX)
    if MEMORY_PERCENT not in devices:
        return (Mib(mib), 0) if mib else (None, 100)
    field = pods.limit_field(name, MEMORY_PERCENT)
    if mib:
        raise BadRequest(field, devices[MEMORY_PERCENT], f"left out where {MEMORY} is set")
    return None, parse_whole(field, devices[MEMORY_PERCENT], 1, 100)


def _priority(pod: pods.Json) -> int:
    """Return the GPU priority of the pod's highest container; in HAMi 0 is high and 1 is low."""
    found = 1
    for name, _, container in pods.containers(pod):
        devices = pods.device_limits(name, container)
        found = min(found, parse_whole(pods.limit_field(name, PRIORITY), devices.get(PRIORITY, 1), 0, 1))
    return 0 if found else PRIORITY_MAX


def _strategy(notes: Mapping[str, str]) -> PlacementStrategy | None:
    """Return the strategy for GPUs, or else that for nodes: milligpu chooses both in one step."""
    found: PlacementStrategy | None = None
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
    """Read names separated by commas; HAMi lists products with their vendor ("NVIDIA-Tesla P4")."""
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
    """Refuse GPUs by index and hardware partitions, instead of attaching a GPU that was excluded or a share."""
    for key in (USE_INDEX, NO_INDEX):
        if key in notes:
            raise BadRequest(key, notes[key], f"replaced by UUIDs ({USE_UUID}, {NO_UUID}): an index does not last")
    mode = notes.get(MODE)
    if mode is not None and not any(word in mode for word in ("hami-core", "mps")):
        want = "hami-core or mps: milligpu limits shares in software"
        raise BadRequest(MODE, mode, want, hint="without this annotation the same request is a share of a GPU")


DIALECT = Dialect(
    "hami",
    first_field,
    read_request,
    source="[HAMi](https://github.com/Project-HAMi/HAMi) 2",
    forms=(
        DialectForm(
            "`nvidia.com/gpu` with `gpumem`, `gpumem-percentage`, `gpucores`, `priority` or HAMi's annotations",
            "That many GPUs, with memory and a share of each; cores are both share and limit. Without cores, "
            "compute follows from the memory and has no limit. Without memory, all of it. All of both is a whole "
            f"GPU. Priority 0 (high) becomes {PRIORITY_MAX}, and 1 becomes 0.",
        ),
        DialectForm(
            "annotations `nvidia.com/{use,nouse}-gputype`, `{use,nouse}-gpuuuid`, `numa-bind`",
            "Requirements on model, UUID, NUMA node.",
        ),
        DialectForm(
            "annotations `hami.io/{gpu,node}-scheduler-policy`",
            "Strategy: `binpack` is best-fit, `spread` is spread, `topology-aware`, `numa` and `numa-first` are "
            "topology.",
        ),
    ),
    also_reads=frozenset({COUNT}),
    schedulers=("hami-scheduler",),
    resources=RESOURCES,
    resource_patterns=(r"nvidia\.com/gpu", r"nvidia\.com/priority"),
)
