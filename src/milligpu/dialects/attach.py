"""The annotation `milligpu.dev/attach`, next to a request in any dialect: where the GPU is.

Admission counts a remote share as `milligpu.dev/remote-vgpu`.
"""

from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.attach import Attach, parse_attach
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest


def apply_attach(pod: pods.Json, request: PodRequest) -> PodRequest:
    """Return the request with the place that its pod asks for."""
    wish = pods.optional(pods.annotations(pod), names.ATTACH, parse_attach)
    counted = counts_remote(pod)
    if counted is not None and wish is not Attach.REMOTE:
        raise BadRequest(counted, names.REMOTE_VGPU, f"set together with the annotation {names.ATTACH}: remote")
    if not request.wants_gpu or wish is not Attach.REMOTE:
        return request
    return replace(request, remote=True, cpu_milli=0, memory_mib=0)


def counts_remote(pod: pods.Json) -> str | None:
    """Return the first field with a resource of remote shares; None if no container has one."""
    for name, _, container in pods.containers(pod):
        for kind in ("limits", "requests"):
            if names.REMOTE_VGPU in pods.section(pods.section(container, "resources"), kind):
                return f"containers[{name}].resources.{kind}[{names.REMOTE_VGPU}]"
    return None
