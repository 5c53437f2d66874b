"""vGPU profiles: nodes carry the label `vgpu.type=v100-8q-8GB`, and pods choose one with a node selector.

kube-scheduler holds pods to the label. What its name says about the card narrows our own choice as well: the model,
and as much memory as the profile gives a virtual card.
"""

import re
from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import Mib

KEYS = ("vgpu.type", "virtual.gpu.type")

# <model>-<GB><series>, and the same size once more for people: v100-8q-8GB, a100-10c, t4-16q-16gb.
_PROFILE = re.compile(r"(?:grid[_-])?([a-z0-9]+(?:-[a-z]+)?)-(\d{1,3})([abcq])(?:-(\d{1,3})gb)?", re.IGNORECASE)


def narrow(pod: pods.Json, request: PodRequest) -> PodRequest:
    """The request with what the selected profile requires; a pod without GPUs may select what it likes."""
    if not request.wants_gpu:
        return request
    selector = pods.section(pods.section(pod, "spec"), "nodeSelector", "spec.nodeSelector")
    wanted = ANY
    for key in KEYS:
        if key in selector:
            wanted = wanted.and_(parse_profile(f"spec.nodeSelector[{key}]", selector[key]))
    return replace(request, requirements=request.requirements.and_(wanted))


def parse_profile(field: str, value: object) -> Requirements:
    """Read a profile's name; its two sizes must agree."""
    match = _PROFILE.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[4] and match[4] != match[2]):
        raise BadRequest(field, value, "a vGPU profile such as v100-8q or v100-8q-8GB")
    return Requirements(models=(match[1].upper(),), memory_min=Mib(int(match[2]) * 1024))
