"""KAI and Run:ai: annotations request a fraction of a GPU's memory, or MiB of it, for one of the containers.

KAI does not divide compute. Here the fraction is the share, and the limit is the whole GPU. The newer form
(NvFractions) names the container in the key and has request and limit. milligpu never lends memory, so the larger
of the two counts.
"""

import re
from collections.abc import Mapping
from typing import NoReturn

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, parse_fraction, parse_mib, parse_size, parse_whole

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
ANNOTATIONS = frozenset({FRACTION, MEMORY, DEVICES, CONTAINER})
_BY_CONTAINER = re.compile(r"nvidia\.com/container\.([^./]+)\.gpu-memory\.(request|limit)")


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first annotation of this dialect."""
    found = (key for key in fields.annotations if key in ANNOTATIONS or _BY_CONTAINER.fullmatch(key))
    return next((f"metadata.annotations[{key}]" for key in found), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read the share of one container, or of each container that is named."""
    notes = pods.annotations(pod)
    shares = _by_container(notes)
    for name in shares.keys() - _names(pod):
        _refuse_name(f"nvidia.com/container.{name}.gpu-memory", name, pod)
    if ANNOTATIONS & notes.keys():
        if shares:
            clash = min(ANNOTATIONS & notes.keys())
            raise BadRequest(clash, notes[clash], "left out where memory is set by container")
        shares = {_container(pod, notes): _share(notes)}
    return pods.make_request(pod, "kai", lambda name, _: shares.get(name))


def _share(notes: Mapping[str, str]) -> ShareRequest:
    if (FRACTION in notes) == (MEMORY in notes):
        if MEMORY in notes:
            raise BadRequest(MEMORY, notes[MEMORY], f"left out where {FRACTION} is set")
        raise BadRequest(FRACTION, None, f"either {FRACTION} or {MEMORY}")
    count = parse_whole(DEVICES, notes.get(DEVICES, 1), 1, GPUS_MAX)
    if MEMORY in notes:
        return ShareRequest(count, mib=parse_mib(MEMORY, notes[MEMORY]), limit=WHOLE)
    milli = parse_fraction(FRACTION, notes[FRACTION])
    return ShareRequest(count, milli, limit=None if milli == WHOLE else WHOLE)


def _container(pod: pods.Json, notes: Mapping[str, str]) -> str:
    name = notes.get(CONTAINER)
    if name is None:
        return pods.first_main(pod)
    if name not in _names(pod):
        _refuse_name(CONTAINER, name, pod)
    return name


def _by_container(notes: Mapping[str, str]) -> dict[str, ShareRequest]:
    sizes: dict[str, Mib] = {}
    for key, value in notes.items():
        match = _BY_CONTAINER.fullmatch(key)
        if match:
            sizes[match[1]] = max(sizes.get(match[1], Mib(0)), parse_size(key, value))
    return {name: ShareRequest(mib=mib, limit=WHOLE) for name, mib in sizes.items()}


def _refuse_name(field: str, name: str, pod: pods.Json) -> NoReturn:
    raise BadRequest(field, name, f"a container of the pod: {', '.join(sorted(_names(pod)))}")


def _names(pod: pods.Json) -> set[str]:
    return {name for name, _, _ in pods.containers(pod)}


DIALECT = Dialect(
    "kai",
    first_field,
    read_request,
    source="[KAI Scheduler](https://github.com/NVIDIA/KAI-Scheduler), Run:ai",
    forms=(
        DialectForm(
            "annotations `gpu-fraction` or `gpu-memory`, `gpu-fraction-num-devices`, `gpu-fraction-container-name`",
            "A fraction, or MiB, of that many GPUs, for the first or the named container, without a limit on "
            "compute.",
        ),
        DialectForm(
            "annotations `nvidia.com/container.NAME.gpu-memory.{request,limit}`",
            "Memory for that container; the larger of the two counts.",
        ),
    ),
    schedulers=("kai-scheduler",),
    annotation_patterns=("gpu-fraction", "gpu-memory$", r"nvidia\.com/container\."),
)
