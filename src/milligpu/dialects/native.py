"""The native form: `nvidia.com/vgpu` in milli-GPU, `nvidia.com/vgpu-memory` in MiB, and annotations of ours."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.labels import Gang, Locality, parse_gang, parse_label
from milligpu.model.qos import parse_policy, parse_priority, parse_strategy
from milligpu.model.request import ContainerRequest, PodRequest, ShareRequest
from milligpu.model.requirements import ANY, parse_requirements
from milligpu.model.units import Milli, parse_mib, parse_milli, parse_whole

_BYTES_PER_MIB = 1024 * 1024


def read(pod: pods.Json) -> PodRequest:
    """What the pod asks for; one without GPU resources asks for nothing."""
    notes = pods.annotations(pod)
    _refuse_unknown(notes)
    limit = _limit(notes)
    return PodRequest(
        pod=pods.reference(pod),
        containers=tuple(
            ContainerRequest(name, _share(name, pods.extended(name, container), limit), kind)
            for name, kind, container in pods.containers(pod)
        ),
        policy=_optional(notes, names.POLICY, parse_policy),
        priority=_optional(notes, names.PRIORITY, parse_priority) or 0,
        strategy=_optional(notes, names.STRATEGY, parse_strategy),
        requirements=_optional(notes, names.REQUIRE, parse_requirements) or ANY,
        gpu_class=_optional(notes, names.CLASS, parse_label),
        locality=Locality(
            affinity=_optional(notes, names.AFFINITY, parse_label),
            anti_affinity=_optional(notes, names.ANTI_AFFINITY, parse_label),
            exclusion=_optional(notes, names.EXCLUSION, parse_label),
        ),
        gang=_gang(notes),
        cpu_milli=pods.node_demand(pod, "cpu", Fraction(1000)),
        memory_mib=pods.node_demand(pod, "memory", Fraction(1, _BYTES_PER_MIB)),
    )


def _share(name: str, wants: Mapping[str, object], limit: Milli | None) -> ShareRequest | None:
    field = f"containers[{name}].resources.limits"
    shared, memory, whole = (wants.get(key) for key in (names.VGPU, names.VGPU_MEMORY, names.WHOLE_GPU))
    if whole is not None:
        if shared is not None or memory is not None:
            raise BadRequest(f"{field}[{names.WHOLE_GPU}]", whole, f"either whole GPUs or {names.VGPU}, not both")
        count = parse_whole(f"{field}[{names.WHOLE_GPU}]", whole, 0, 64)
        return ShareRequest(count, Milli(1000)) if count else None
    if shared is None:
        if memory is not None:
            raise BadRequest(f"{field}[{names.VGPU_MEMORY}]", memory, f"{names.VGPU} beside it")
        return None
    if str(shared) == "0" and memory is None:
        return None  # Kubernetes, too, reads a count of 0 as none
    count, milli = parse_milli(f"{field}[{names.VGPU}]", shared)
    mib = None if memory is None else parse_mib(f"{field}[{names.VGPU_MEMORY}]", memory)
    if limit is not None and limit < milli:
        raise BadRequest(names.LIMIT, limit, f"{milli} to 1000, because container {name} asks for {milli}")
    return ShareRequest(count, milli, mib, limit=limit)


def _limit(notes: Mapping[str, str]) -> Milli | None:
    text = notes.get(names.LIMIT)
    return None if text is None else Milli(parse_whole(names.LIMIT, text, 1, 1000))


def _gang(notes: Mapping[str, str]) -> Gang | None:
    name, size = notes.get(names.GROUP), notes.get(names.GROUP_SIZE)
    if (name is None) != (size is None):
        missing = names.GROUP if name is None else names.GROUP_SIZE
        raise BadRequest(missing, None, f"{names.GROUP} and {names.GROUP_SIZE} together")
    return None if name is None else parse_gang(names.GROUP, name, names.GROUP_SIZE, size)


_T = TypeVar("_T")


def _optional(notes: Mapping[str, str], key: str, parse: Callable[[str, object], _T]) -> _T | None:
    text = notes.get(key)
    return None if text is None else parse(key, text)


def _refuse_unknown(notes: Mapping[str, str]) -> None:
    """A typo in one of our annotations must not mean that it was never written."""
    known = names.USER_ANNOTATIONS | {names.GRANT}
    for key, value in notes.items():
        if key.startswith(names.PREFIX) and key not in known:
            allowed = ", ".join(sorted(name.removeprefix(names.PREFIX) for name in names.USER_ANNOTATIONS))
            raise BadRequest(key, value, f"an annotation that exists: {names.PREFIX}{{{allowed}}}")
