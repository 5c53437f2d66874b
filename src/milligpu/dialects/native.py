"""The native form: `nvidia.com/vgpu` in milli-GPU, `nvidia.com/vgpu-memory` in MiB, and annotations of ours."""

from collections.abc import Mapping
from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.dialects.shares import check_counted, parse_shares
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.labels import Gang, Locality, parse_gang, parse_label
from milligpu.model.qos import parse_policy, parse_priority, parse_strategy
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import ANY, parse_requirements
from milligpu.model.units import GPUS_MAX, WHOLE, Milli, parse_mib, parse_milli, parse_whole

# What is written on pods of any dialect when they are there.
_LATER = frozenset({names.GRANT, names.RESIZE})
CLASS_RESOURCE = "gpu-"
"""`gpu-gold: 1` is one GPU of the class gold."""


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect; whole GPUs (`nvidia.com/gpu`) may stand beside it."""
    notes = (key for key in words.annotations if key.startswith(names.PREFIX) and key not in _LATER)
    resources = (
        field for key, field in words.devices.items() if key.startswith((names.VGPU, CLASS_RESOURCE, names.PREFIX))
    )
    return next(resources, None) or next((f"metadata.annotations[{key}]" for key in notes), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """What the pod asks for; one without GPU resources asks for nothing."""
    notes = pods.annotations(pod)
    _refuse_unknown(notes)
    reader = _Reader(notes)
    request = pods.request(pod, "native", reader.share)
    reader.refuse_strangers(request)
    return replace(
        request,
        dialect=pods.optional(notes, names.DIALECT, parse_label) or "native",
        policy=pods.optional(notes, names.POLICY, parse_policy),
        priority=pods.optional(notes, names.PRIORITY, parse_priority) or 0,
        strategy=pods.optional(notes, names.STRATEGY, parse_strategy),
        requirements=pods.optional(notes, names.REQUIRE, parse_requirements) or ANY,
        gpu_class=_class(reader.classes, notes),
        locality=Locality(
            affinity=pods.optional(notes, names.AFFINITY, parse_label),
            anti_affinity=pods.optional(notes, names.ANTI_AFFINITY, parse_label),
            exclusion=pods.optional(notes, names.EXCLUSION, parse_label),
        ),
        gang=_gang(notes),
    )


class _Reader:
    """Reads containers' shares with the annotations that concern all of them."""

    def __init__(self, notes: Mapping[str, str]) -> None:
        self.limit = _limit(notes)
        self.shares = pods.optional(notes, names.SHARES, parse_shares) or {}
        self.classes: dict[str, str] = {}
        """Class resources that containers named, by field."""

    def share(self, name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        _refuse_unknown_resources(name, wants)
        self.classes |= {pods.field(name, key): key for key in wants if key.startswith(CLASS_RESOURCE)}
        whole = _whole(name, wants)
        if name in self.shares:
            return self._detailed(name, wants)
        return whole or self._fraction(name, wants)

    def _detailed(self, name: str, wants: Mapping[str, object]) -> ShareRequest:
        share = self.shares[name]
        field = pods.field(name, names.VGPU)
        if names.VGPU not in wants:
            raise BadRequest(field, None, f"the amount that {names.SHARES} says")
        check_counted(name, share, parse_whole(field, wants[names.VGPU], 1, GPUS_MAX * WHOLE))
        memory = wants.get(names.VGPU_MEMORY)
        if memory is not None and parse_mib(pods.field(name, names.VGPU_MEMORY), memory) != share.mib:
            raise BadRequest(pods.field(name, names.VGPU_MEMORY), memory, f"{share.mib}, as {names.SHARES} says")
        if self.limit is not None and share.limit is not None:
            raise BadRequest(names.LIMIT, self.limit, f"either {names.LIMIT} or a limit in {names.SHARES}")
        return self._with_limit(name, share)

    def _fraction(self, name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        shared, memory = wants.get(names.VGPU), wants.get(names.VGPU_MEMORY)
        if shared is None:
            if memory is not None:
                raise BadRequest(pods.field(name, names.VGPU_MEMORY), memory, f"{names.VGPU} beside it")
            return None
        if str(shared) == "0" and memory is None:
            return None  # Kubernetes, too, reads a count of 0 as none
        count, milli = parse_milli(pods.field(name, names.VGPU), shared)
        mib = None if memory is None else parse_mib(pods.field(name, names.VGPU_MEMORY), memory)
        return self._with_limit(name, ShareRequest(count, milli, mib))

    def _with_limit(self, name: str, share: ShareRequest) -> ShareRequest:
        if self.limit is None:
            return share
        if self.limit < (share.milli or 0):
            want = f"{share.milli} to {WHOLE}, because container {name} asks for {share.milli}"
            raise BadRequest(names.LIMIT, self.limit, want)
        return replace(share, limit=self.limit)

    def refuse_strangers(self, request: PodRequest) -> None:
        known = [container.name for container in request.containers]
        for name in self.shares:
            if name not in known:
                raise BadRequest(f"{names.SHARES}[{name}]", name, f"a container of the pod: {', '.join(known)}")


def _whole(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
    """Whole GPUs, by NVIDIA's name or by a class's."""
    kinds = [key for key in wants if key == names.WHOLE_GPU or key.startswith(CLASS_RESOURCE)]
    shared = [key for key in (names.VGPU, names.VGPU_MEMORY) if key in wants]
    if kinds and len(kinds) + bool(shared) > 1:
        want = f"one of whole GPUs, a class and {names.VGPU}, not several"
        raise BadRequest(pods.field(name, kinds[0]), wants[kinds[0]], want)
    if not kinds:
        return None
    count = parse_whole(pods.field(name, kinds[0]), wants[kinds[0]], 0, GPUS_MAX)
    return ShareRequest(count, WHOLE) if count else None


def _class(resources: Mapping[str, str], notes: Mapping[str, str]) -> str | None:
    named = pods.optional(notes, names.CLASS, parse_label)
    for field, key in resources.items():
        asked = parse_label(field, key.removeprefix(CLASS_RESOURCE))
        if named not in {None, asked}:
            raise BadRequest(field, key, f"one class in a pod; it also names {named}")
        named = asked
    return named


def _limit(notes: Mapping[str, str]) -> Milli | None:
    text = notes.get(names.LIMIT)
    return None if text is None else Milli(parse_whole(names.LIMIT, text, 1, WHOLE))


def _gang(notes: Mapping[str, str]) -> Gang | None:
    name, size = notes.get(names.GROUP), notes.get(names.GROUP_SIZE)
    if (name is None) != (size is None):
        missing = names.GROUP if name is None else names.GROUP_SIZE
        raise BadRequest(missing, None, f"{names.GROUP} and {names.GROUP_SIZE} together")
    if name is None:
        if names.GROUP_LEAST in notes:
            raise BadRequest(names.GROUP, None, f"{names.GROUP} beside {names.GROUP_LEAST}")
        return None
    gang = parse_gang(names.GROUP, name, names.GROUP_SIZE, size)
    least = notes.get(names.GROUP_LEAST)
    return gang if least is None else replace(gang, least=parse_whole(names.GROUP_LEAST, least, 1, gang.size))


def _refuse_unknown(notes: Mapping[str, str]) -> None:
    """A typo in one of our annotations must not mean that it was never written."""
    known = names.USER_ANNOTATIONS | {names.GRANT}
    for key, value in notes.items():
        if key.startswith(names.PREFIX) and key not in known:
            allowed = ", ".join(sorted(name.removeprefix(names.PREFIX) for name in names.USER_ANNOTATIONS))
            raise BadRequest(key, value, f"an annotation that exists: {names.PREFIX}{{{allowed}}}")


def _refuse_unknown_resources(container: str, wants: Mapping[str, object]) -> None:
    for key, value in wants.items():
        if key.startswith((names.VGPU, names.PREFIX)) and key not in {names.VGPU, names.VGPU_MEMORY}:
            raise BadRequest(pods.field(container, key), value, f"{names.VGPU} or {names.VGPU_MEMORY}")
