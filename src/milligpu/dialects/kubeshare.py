"""KubeShare 1 and 2: share and limit as fractions of a GPU's compute, and memory in bytes.

Version 1 has annotations on SharePods (prefix `kubeshare/`), version 2 labels on ordinary pods (`sharedgpu/`). In
KubeShare the share belongs to the pod; here the first container gets it.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model.affinity import AffinityLabels, parse_label
from milligpu.model.errors import BadRequest
from milligpu.model.group import GROUP_SIZE_MAX, PodGroup
from milligpu.model.policy import parse_priority
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import ANY, Requirements, parse_model
from milligpu.model.units import (
    BYTES_PER_MIB,
    GPUS_MAX,
    MIB_MAX,
    WHOLE,
    Mib,
    Milli,
    parse_fraction,
    parse_quantity,
    parse_whole,
)

V1 = "kubeshare/"
REQUEST, LIMIT, MEMORY = V1 + "gpu_request", V1 + "gpu_limit", V1 + "gpu_mem"
AFFINITY, ANTI_AFFINITY, EXCLUSION = V1 + "sched_affinity", V1 + "sched_anti-affinity", V1 + "sched_exclusion"
GPU_ID = V1 + "GPUID"
"""A name for a GPU that users choose: pods with the same name share a GPU."""
_V1_KNOWN = frozenset({REQUEST, LIMIT, MEMORY, AFFINITY, ANTI_AFFINITY, EXCLUSION, GPU_ID})

V2 = "sharedgpu/"
REQUEST2, LIMIT2, MEMORY2 = V2 + "gpu_request", V2 + "gpu_limit", V2 + "gpu_mem"
MODEL, PRIORITY = V2 + "gpu_model", V2 + "priority"
GROUP, GROUP_LONG = V2 + "group_name", V2 + "pod_group_name"
HEADCOUNT, THRESHOLD, MIN_AVAILABLE = V2 + "group_headcount", V2 + "group_threshold", V2 + "min_available"
_V2_KNOWN = frozenset(
    {REQUEST2, LIMIT2, MEMORY2, MODEL, PRIORITY, GROUP, GROUP_LONG, HEADCOUNT, THRESHOLD, MIN_AVAILABLE}
)
# KubeShare's scheduler adds these to pods that it places.
_V2_WRITTEN = frozenset({V2 + "gpu_uuid", V2 + "cell_id", V2 + "gpu_manager_port", V2 + "port"})


def first_field_v1(fields: pods.PodFields) -> str | None:
    """Return the first annotation of version 1."""
    return next((f"metadata.annotations[{key}]" for key in fields.annotations if key.startswith(V1)), None)


def read_v1(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read a SharePod, or the pod that was created from it."""
    notes = _known(pods.annotations(pod), V1, _V1_KNOWN)
    amounts = {REQUEST, LIMIT, MEMORY}
    share: ShareRequest | None = None
    if amounts & notes.keys():
        for key in sorted(amounts - notes.keys()):
            raise BadRequest(key, None, f"{REQUEST}, {LIMIT} and {MEMORY} go together")
        guaranteed, most = _compute(notes, REQUEST, LIMIT)
        share = ShareRequest(1, guaranteed, _parse_bytes(MEMORY, notes[MEMORY]), limit=most)
    first = pods.first_main(pod)
    request = pods.make_request(pod, "kubeshare-v1", lambda name, _: share if name == first else None)
    return replace(
        request,
        locality=AffinityLabels(
            affinity=pods.optional(notes, GPU_ID, parse_label) or pods.optional(notes, AFFINITY, parse_label),
            anti_affinity=pods.optional(notes, ANTI_AFFINITY, parse_label),
            exclusion=pods.optional(notes, EXCLUSION, parse_label),
        ),
    )


def first_field_v2(fields: pods.PodFields) -> str | None:
    """Return the first label of version 2, or annotation: before its release it had annotations."""
    label = next((f"metadata.labels[{key}]" for key in fields.labels if key.startswith(V2)), None)
    return label or next((f"metadata.annotations[{key}]" for key in fields.annotations if key.startswith(V2)), None)


def read_v2(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read an ordinary pod with labels."""
    notes = _known({**pods.annotations(pod), **pods.labels(pod)}, V2, _V2_KNOWN | _V2_WRITTEN)
    if LIMIT2 not in notes:
        raise BadRequest(LIMIT2, None, f"the most compute that the pod may use, together with {min(notes)}")
    share = _share_v2(notes)
    first = pods.first_main(pod)
    request = pods.make_request(pod, "kubeshare-v2", lambda name, _: share if name == first else None)
    model = pods.optional(notes, MODEL, parse_model)
    return replace(
        request,
        priority=pods.optional(notes, PRIORITY, parse_priority) or 0,
        requirements=ANY if model is None else Requirements(models=(model,)),
        group=_group(notes),
    )


def _share_v2(notes: Mapping[str, str]) -> ShareRequest:
    if _number(LIMIT2, notes[LIMIT2]) > 1:
        return _several(notes)
    guaranteed, most = _compute(notes, REQUEST2, LIMIT2)
    if MEMORY2 in notes:
        return ShareRequest(1, guaranteed, _parse_bytes(MEMORY2, notes[MEMORY2]), limit=most)
    if guaranteed == WHOLE:
        return ShareRequest(1, WHOLE)
    if guaranteed == 0:  # no compute is guaranteed, so the memory follows from the limit
        return ShareRequest(1, guaranteed, card_memory=most, limit=most)
    return ShareRequest(1, guaranteed, limit=most)


def _several(notes: Mapping[str, str]) -> ShareRequest:
    count = parse_whole(LIMIT2, notes[LIMIT2], 1, GPUS_MAX)
    if _number(REQUEST2, notes.get(REQUEST2, "0")) != count:
        raise BadRequest(REQUEST2, notes.get(REQUEST2), f"the same as {LIMIT2}, {count}, for more than one GPU")
    return ShareRequest(count, WHOLE)


def _compute(notes: Mapping[str, str], request: str, limit: str) -> tuple[Milli, Milli]:
    most = parse_fraction(limit, notes[limit])
    guaranteed = parse_fraction(request, notes.get(request, "0"), zero=True)
    if guaranteed > most:
        raise BadRequest(request, notes[request], f"at most {limit}, {notes[limit]}")
    return guaranteed, most


def _parse_bytes(field: str, value: object) -> Mib:
    return Mib(-(-parse_whole(field, value, 1, MIB_MAX * BYTES_PER_MIB) // BYTES_PER_MIB))


def _group(notes: Mapping[str, str]) -> PodGroup | None:
    name_field = GROUP_LONG if GROUP_LONG in notes else GROUP
    parts = {name_field, HEADCOUNT, THRESHOLD, MIN_AVAILABLE} & notes.keys()
    if not parts:
        return None
    if name_field not in notes:
        raise BadRequest(GROUP, None, f"the group's name, together with {', '.join(sorted(parts))}")
    name = parse_label(name_field, notes[name_field])
    if MIN_AVAILABLE in notes:
        least = parse_whole(MIN_AVAILABLE, notes[MIN_AVAILABLE], 1, GROUP_SIZE_MAX)
        size = parse_whole(HEADCOUNT, notes.get(HEADCOUNT, least), least, GROUP_SIZE_MAX)
        return PodGroup(name, size, least)
    for key in (HEADCOUNT, THRESHOLD):
        if key not in notes:
            raise BadRequest(key, None, f"{GROUP}, {HEADCOUNT} and {THRESHOLD} go together")
    size = parse_whole(HEADCOUNT, notes[HEADCOUNT], 1, GROUP_SIZE_MAX)
    threshold = _number(THRESHOLD, notes[THRESHOLD])
    if not 0 < threshold <= 1:
        raise BadRequest(THRESHOLD, notes[THRESHOLD], "a fraction of the group above 0, up to 1")
    return PodGroup(name, size, max(1, int(threshold * size + Fraction(1, 2))))


def _number(field: str, value: object) -> Fraction:
    number = parse_quantity(field, value)
    if number < 0:
        raise BadRequest(field, value, "0 or more")
    return number


def _known(notes: Mapping[str, str], prefix: str, known: frozenset[str]) -> Mapping[str, str]:
    """Return this version's keys, and refuse a misspelled one instead of ignoring it."""
    mine = {key: value for key, value in notes.items() if key.startswith(prefix)}
    for key, value in mine.items():
        if key not in known:
            raise BadRequest(key, value, f"written as one of {', '.join(sorted(known))}")
    return mine


_REPOSITORY = "https://github.com/NTHU-LSALAB/KubeShare"

DIALECT_V1 = Dialect(
    "kubeshare-v1",
    first_field_v1,
    read_v1,
    source=f"[KubeShare]({_REPOSITORY}) 1",
    forms=(
        DialectForm(
            "SharePods with annotations `kubeshare/gpu_request`, `gpu_limit`, `gpu_mem`",
            "Share, limit and memory for the first container.",
        ),
        DialectForm(
            "annotations `kubeshare/sched_affinity`, `sched_anti-affinity`, `sched_exclusion`, `GPUID`",
            "The three labels; pods with the same GPUID share a GPU.",
        ),
    ),
    annotation_patterns=(V1,),
)
DIALECT_V2 = Dialect(
    "kubeshare-v2",
    first_field_v2,
    read_v2,
    source=f"[KubeShare]({_REPOSITORY}) 2",
    forms=(
        DialectForm(
            "labels (or annotations) `sharedgpu/gpu_request`, `gpu_limit`, `gpu_mem`, `gpu_model`, `priority`, "
            "`group_name`, `group_headcount`, `group_threshold`",
            "The same, with model, priority and group. Above 1.0: whole GPUs. Without a request, no compute is "
            "guaranteed.",
        ),
    ),
    annotation_patterns=(V2,),
    label_patterns=(V2,),
    schedulers=("kubeshare-scheduler",),
)
