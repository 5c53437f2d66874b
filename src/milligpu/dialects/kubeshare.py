"""KubeShare, both versions: a guaranteed and a greatest part of a card's compute, and memory in bytes.

Version 1 writes annotations on a SharePod (prefix `kubeshare/`), version 2 labels on ordinary pods (`sharedgpu/`).
The share is the pod's; here its first container gets it.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model.errors import BadRequest
from milligpu.model.labels import GANG_MAX, Gang, Locality, parse_label
from milligpu.model.qos import parse_priority
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import ANY, Requirements, parse_model
from milligpu.model.units import GPUS_MAX, MIB_MAX, WHOLE, Mib, Milli, parse_fraction, parse_quantity, parse_whole

V1 = "kubeshare/"
REQUEST, LIMIT, MEMORY = V1 + "gpu_request", V1 + "gpu_limit", V1 + "gpu_mem"
AFFINITY, ANTI_AFFINITY, EXCLUSION = V1 + "sched_affinity", V1 + "sched_anti-affinity", V1 + "sched_exclusion"
GPU_ID = V1 + "GPUID"
"""A name for a card that pods agree on: those with the same one share it."""
_V1_KNOWN = frozenset({REQUEST, LIMIT, MEMORY, AFFINITY, ANTI_AFFINITY, EXCLUSION, GPU_ID})

V2 = "sharedgpu/"
REQUEST2, LIMIT2, MEMORY2 = V2 + "gpu_request", V2 + "gpu_limit", V2 + "gpu_mem"
MODEL, PRIORITY = V2 + "gpu_model", V2 + "priority"
GROUP, GROUP_LONG = V2 + "group_name", V2 + "pod_group_name"
HEADCOUNT, THRESHOLD, MIN_AVAILABLE = V2 + "group_headcount", V2 + "group_threshold", V2 + "min_available"
_V2_KNOWN = frozenset(
    {REQUEST2, LIMIT2, MEMORY2, MODEL, PRIORITY, GROUP, GROUP_LONG, HEADCOUNT, THRESHOLD, MIN_AVAILABLE}
)
# What KubeShare's own scheduler adds to pods that it placed.
_V2_WRITTEN = frozenset({V2 + "gpu_uuid", V2 + "cell_id", V2 + "gpu_manager_port", V2 + "port"})

_MIB = 1024 * 1024


def speaks_v1(words: pods.Words) -> str | None:
    """The first field of version 1."""
    return next((f"metadata.annotations[{key}]" for key in words.annotations if key.startswith(V1)), None)


def read_v1(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """A SharePod, or the pod that it became."""
    notes = _known(pods.annotations(pod), V1, _V1_KNOWN)
    amounts = {REQUEST, LIMIT, MEMORY}
    share: ShareRequest | None = None
    if amounts & notes.keys():
        for key in sorted(amounts - notes.keys()):
            raise BadRequest(key, None, f"{REQUEST}, {LIMIT} and {MEMORY} together")
        guaranteed, most = _compute(notes, REQUEST, LIMIT)
        share = ShareRequest(1, guaranteed, _parse_bytes(MEMORY, notes[MEMORY]), limit=most)
    first = pods.first_main(pod)
    request = pods.request(pod, "kubeshare-v1", lambda name, _: share if name == first else None)
    return replace(
        request,
        locality=Locality(
            affinity=pods.optional(notes, GPU_ID, parse_label) or pods.optional(notes, AFFINITY, parse_label),
            anti_affinity=pods.optional(notes, ANTI_AFFINITY, parse_label),
            exclusion=pods.optional(notes, EXCLUSION, parse_label),
        ),
    )


def speaks_v2(words: pods.Words) -> str | None:
    """The first field of version 2; before its release it wrote annotations."""
    label = next((f"metadata.labels[{key}]" for key in words.labels if key.startswith(V2)), None)
    return label or next((f"metadata.annotations[{key}]" for key in words.annotations if key.startswith(V2)), None)


def read_v2(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """An ordinary pod with labels."""
    notes = _known({**pods.annotations(pod), **pods.labels(pod)}, V2, _V2_KNOWN | _V2_WRITTEN)
    if LIMIT2 not in notes:
        raise BadRequest(LIMIT2, None, f"the most compute it may use, beside {min(notes)}")
    share = _share_v2(notes)
    first = pods.first_main(pod)
    request = pods.request(pod, "kubeshare-v2", lambda name, _: share if name == first else None)
    model = pods.optional(notes, MODEL, parse_model)
    return replace(
        request,
        priority=pods.optional(notes, PRIORITY, parse_priority) or 0,
        requirements=ANY if model is None else Requirements(models=(model,)),
        gang=_gang(notes),
    )


def _share_v2(notes: Mapping[str, str]) -> ShareRequest:
    if _number(LIMIT2, notes[LIMIT2]) > 1:
        return _several(notes)
    guaranteed, most = _compute(notes, REQUEST2, LIMIT2)
    if MEMORY2 in notes:
        return ShareRequest(1, guaranteed, _parse_bytes(MEMORY2, notes[MEMORY2]), limit=most)
    if guaranteed == WHOLE:
        return ShareRequest(1, WHOLE)
    if guaranteed == 0:  # nothing is promised, yet it must fit somewhere: the memory that its ceiling stands for
        return ShareRequest(1, guaranteed, card_memory=most, limit=most)
    return ShareRequest(1, guaranteed, limit=most)


def _several(notes: Mapping[str, str]) -> ShareRequest:
    count = parse_whole(LIMIT2, notes[LIMIT2], 1, GPUS_MAX)
    if _number(REQUEST2, notes.get(REQUEST2, "0")) != count:
        raise BadRequest(REQUEST2, notes.get(REQUEST2), f"{LIMIT2}, {count}, for more than one GPU")
    return ShareRequest(count, WHOLE)


def _compute(notes: Mapping[str, str], request: str, limit: str) -> tuple[Milli, Milli]:
    most = parse_fraction(limit, notes[limit])
    guaranteed = parse_fraction(request, notes.get(request, "0"), zero=True)
    if guaranteed > most:
        raise BadRequest(request, notes[request], f"0 to {limit}, {notes[limit]}")
    return guaranteed, most


def _parse_bytes(field: str, value: object) -> Mib:
    return Mib(-(-parse_whole(field, value, 1, MIB_MAX * _MIB) // _MIB))


def _gang(notes: Mapping[str, str]) -> Gang | None:
    name_field = GROUP_LONG if GROUP_LONG in notes else GROUP
    parts = {name_field, HEADCOUNT, THRESHOLD, MIN_AVAILABLE} & notes.keys()
    if not parts:
        return None
    if name_field not in notes:
        raise BadRequest(GROUP, None, f"the group's name beside {', '.join(sorted(parts))}")
    name = parse_label(name_field, notes[name_field])
    if MIN_AVAILABLE in notes:
        least = parse_whole(MIN_AVAILABLE, notes[MIN_AVAILABLE], 1, GANG_MAX)
        size = parse_whole(HEADCOUNT, notes.get(HEADCOUNT, least), least, GANG_MAX)
        return Gang(name, size, least)
    for key in (HEADCOUNT, THRESHOLD):
        if key not in notes:
            raise BadRequest(key, None, f"{GROUP}, {HEADCOUNT} and {THRESHOLD} together")
    size = parse_whole(HEADCOUNT, notes[HEADCOUNT], 1, GANG_MAX)
    threshold = _number(THRESHOLD, notes[THRESHOLD])
    if not 0 < threshold <= 1:
        raise BadRequest(THRESHOLD, notes[THRESHOLD], "a fraction of the group above 0, up to 1")
    return Gang(name, size, max(1, int(threshold * size + Fraction(1, 2))))


def _number(field: str, value: object) -> Fraction:
    number = parse_quantity(field, value)
    if number < 0:
        raise BadRequest(field, value, "0 or more")
    return number


def _known(notes: Mapping[str, str], prefix: str, known: frozenset[str]) -> Mapping[str, str]:
    """Only this version's keys; a typo must not mean that one was never written."""
    mine = {key: value for key, value in notes.items() if key.startswith(prefix)}
    for key, value in mine.items():
        if key not in known:
            raise BadRequest(key, value, f"one of {', '.join(sorted(known))}")
    return mine
