"""KAI and Run:ai: annotations ask for a fraction of a card's memory, or for MiB of it, for one of the containers.

Compute is shared freely there: the fraction is what is guaranteed here, and the card is the ceiling. The newer form
(NvFractions) names the container in the key and has request and limit; memory is never lent here, so the limit is
what is set aside.
"""

import re
from collections.abc import Mapping
from typing import NoReturn

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, parse_fraction, parse_mib, parse_size, parse_whole

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
ANNOTATIONS = frozenset({FRACTION, MEMORY, DEVICES, CONTAINER})
_BY_CONTAINER = re.compile(r"nvidia\.com/container\.([^./]+)\.gpu-memory\.(request|limit)")


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect."""
    found = (key for key in words.annotations if key in ANNOTATIONS or _BY_CONTAINER.fullmatch(key))
    return next((f"metadata.annotations[{key}]" for key in found), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """One container's share, or one for each that is named."""
    notes = pods.annotations(pod)
    shares = _by_container(notes)
    for name in shares.keys() - _names(pod):
        _refuse_name(f"nvidia.com/container.{name}.gpu-memory", name, pod)
    if ANNOTATIONS & notes.keys():
        if shares:
            raise BadRequest(min(ANNOTATIONS & notes.keys()), None, "either this or memory by container, not both")
        shares = {_container(pod, notes): _share(notes)}
    return pods.request(pod, "kai", lambda name, _: shares.get(name))


def _share(notes: Mapping[str, str]) -> ShareRequest:
    if (FRACTION in notes) == (MEMORY in notes):
        both = FRACTION in notes
        raise BadRequest(MEMORY if both else FRACTION, notes.get(MEMORY), f"either {FRACTION} or {MEMORY}")
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
