"""vGPU profiles: a pod selects nodes by the label `vgpu.type=v100-8q-8GB`.

A label has one value, people misspell it, and a node may have vGPUs of two profiles. So the agent writes a label of
its own for each profile, `milligpu.dev/vgpu.v100-8q=true`, and admission rewrites the selector to it. The profile
is also a requirement on the GPU's model, which a GPU that is a whole card never meets.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import DialectForm
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import Requirements
from milligpu.model.vgpu import VgpuProfile, parse_profile

KEYS = (names.VGPU_TYPE, "virtual.gpu.type")
SELECTED = "true"
FORM = DialectForm(
    "node selector `vgpu.type` or `virtual.gpu.type`: a vGPU profile such as `v100-8q-8GB`, also spelled "
    "`v100-8g-8GB` or `v100-8GB`",
    "A GPU of that profile; a whole GPU (`nvidia.com/gpu: 1`) is then that vGPU whole. Admission rewrites the "
    "selector to the agent's label, `milligpu.dev/vgpu.v100-8q`.",
)


def require_profile(pod: pods.Json, request: PodRequest) -> PodRequest:
    """Return the request for GPUs of the selected profile; a pod without GPUs may select any node."""
    found = _selected(pod) if request.wants_gpu else []
    if not found:
        return request
    first = found[0]
    for other in found:
        if other.profile != first.profile:
            raise BadRequest(other.field, other.value, f"the same profile as {first.field}, {first.value}")
    containers = tuple(
        each if each.share is None else replace(each, share=_of_vgpu(first, each.share))
        for each in request.containers
    )
    requirements = request.requirements.and_(Requirements(models=(first.profile.model,)))
    return replace(request, containers=containers, requirements=requirements)


def rewrite_selector(pod: dict[str, Any]) -> None:
    """Select the agent's own label of the profile in an admitted pod."""
    spec = cast("dict[str, Any]", pod["spec"])
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    if any(key in selector for key in KEYS):
        profiles = {names.VGPU_PROFILE + each.profile.name: SELECTED for each in _selected(pod)}
        spec["nodeSelector"] = {key: value for key, value in selector.items() if key not in KEYS} | profiles


@dataclass(frozen=True, slots=True)
class _Selected:
    field: str
    value: object
    profile: VgpuProfile


def _selected(pod: pods.Json) -> list[_Selected]:
    selector = pods.section(pods.section(pod, "spec"), "nodeSelector", "spec.nodeSelector")
    found: list[_Selected] = []
    for key, value in selector.items():
        field = f"spec.nodeSelector[{key}]"
        if key in KEYS:
            found.append(_Selected(field, value, parse_profile(field, value)))
        elif key.startswith(names.VGPU_PROFILE):
            if value != SELECTED:
                raise BadRequest(field, value, f'"{SELECTED}"')
            name = key.removeprefix(names.VGPU_PROFILE)
            found.append(_Selected(field, name, parse_profile(field, name)))
    return found


def _of_vgpu(selected: _Selected, share: ShareRequest) -> ShareRequest:
    """Return the share of a vGPU; all of its compute, with no memory named, is the vGPU whole."""
    profile = selected.profile
    milli = profile.milli if share.whole else share.milli
    if (milli or 0) > profile.milli:
        want = f"a profile with at least {milli} milli-GPU: {profile.name} has {profile.milli}"
        raise BadRequest(selected.field, selected.value, want)
    part = replace(share, milli=milli, gpu_milli=profile.milli)
    return replace(part, limit=None) if part.whole else part
