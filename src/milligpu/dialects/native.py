"""The native form: `nvidia.com/vgpu` in milli-GPU, `nvidia.com/vgpu-memory` in MiB, and annotations."""

from collections.abc import Mapping
from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.qos import QOS_LIMITS
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.dialects.shares import check_counted, parse_shares
from milligpu.model import names
from milligpu.model.affinity import AffinityLabels, parse_label
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_class import RESOURCE_PREFIX, parse_class_name
from milligpu.model.group import PodGroup, parse_group
from milligpu.model.policy import SharePolicy, parse_policy, parse_priority, parse_strategy
from milligpu.model.request import PodRequest, ShareRequest, policy_problem
from milligpu.model.requirements import ANY, parse_requirements
from milligpu.model.units import GPUS_MAX, WHOLE, Milli, milli_hint, parse_mib, parse_milli, parse_whole

# Written on pods of any dialect: next to the request, or after the pod is created.
_BESIDE = frozenset({names.ATTACH, *names.GRANTED, names.RESIZE, names.FLOOR, names.GROUP_MIN_COUNT, names.USER})


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect, or else its first annotation."""
    notes = (key for key in fields.annotations if key.startswith(names.PREFIX) and key not in _BESIDE)
    resources = (
        field
        for key, field in fields.devices.items()
        if key.startswith((names.VGPU, RESOURCE_PREFIX, names.PREFIX))
    )
    return next(resources, None) or next((f"metadata.annotations[{key}]" for key in notes), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read what the pod requests; a pod without GPU resources requests nothing."""
    notes = _renamed(pods.annotations(pod))
    _refuse_unknown(notes)
    reader = _Reader(notes)
    request = pods.make_request(pod, "native", reader.share)
    reader.refuse_strangers(request)
    policy = pods.optional(notes, names.POLICY, parse_policy)
    _refuse_limits(request, policy)
    return replace(
        request,
        dialect=pods.optional(notes, names.DIALECT, parse_label) or "native",
        policy=policy,
        priority=pods.optional(notes, names.PRIORITY, parse_priority) or 0,
        strategy=pods.optional(notes, names.STRATEGY, parse_strategy),
        requirements=pods.optional(notes, names.REQUIRE, parse_requirements) or ANY,
        gpu_class=_class(reader.classes, notes),
        locality=AffinityLabels(
            affinity=pods.optional(notes, names.AFFINITY, parse_label),
            anti_affinity=pods.optional(notes, names.ANTI_AFFINITY, parse_label),
            exclusion=pods.optional(notes, names.EXCLUSION, parse_label),
        ),
        group=_group(notes),
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
        self.classes |= {pods.limit_field(name, key): key for key in wants if key.startswith(RESOURCE_PREFIX)}
        whole = _whole(name, wants)
        if name in self.shares:
            return self._detailed(name, wants)
        return whole or self._fraction(name, wants)

    def _detailed(self, name: str, wants: Mapping[str, object]) -> ShareRequest:
        share = self.shares[name]
        field = pods.limit_field(name, names.VGPU)
        if names.VGPU not in wants:
            raise BadRequest(field, None, f"the amount that {names.SHARES} says")
        check_counted(name, share, parse_whole(field, wants[names.VGPU], 1, GPUS_MAX * WHOLE))
        memory = wants.get(names.VGPU_MEMORY)
        if memory is not None and parse_mib(pods.limit_field(name, names.VGPU_MEMORY), memory) != share.mib:
            raise BadRequest(
                pods.limit_field(name, names.VGPU_MEMORY), memory, f"{share.mib}, as {names.SHARES} says"
            )
        if self.limit is not None and share.limit is not None:
            raise BadRequest(names.LIMIT, self.limit, f"left out where {names.SHARES} has a limit")
        return self._with_limit(name, share)

    def _fraction(self, name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        shared, memory = wants.get(names.VGPU), wants.get(names.VGPU_MEMORY)
        if shared is None:
            if memory is not None:
                raise BadRequest(
                    pods.limit_field(name, names.VGPU_MEMORY), memory, f"set together with {names.VGPU}"
                )
            return None
        if str(shared) == "0" and memory is None:
            return None  # Kubernetes, too, reads a count of 0 as none
        count, milli = parse_milli(pods.limit_field(name, names.VGPU), shared)
        mib = None if memory is None else parse_mib(pods.limit_field(name, names.VGPU_MEMORY), memory)
        return self._with_limit(name, ShareRequest(count, milli, mib))

    def _with_limit(self, name: str, share: ShareRequest) -> ShareRequest:
        if self.limit is None:
            return share
        if self.limit < (share.milli or 0):
            want = f"from {share.milli} to {WHOLE}, because container {name} asks for {share.milli}"
            raise BadRequest(names.LIMIT, self.limit, want)
        return replace(share, limit=self.limit)

    def refuse_strangers(self, request: PodRequest) -> None:
        known = [container.name for container in request.containers]
        for name in self.shares:
            if name not in known:
                raise BadRequest(f"{names.SHARES}[{name}]", name, f"a container of the pod: {', '.join(known)}")


def _whole(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
    """Whole GPUs, by NVIDIA's name or by a class's."""
    kinds = [key for key in wants if key == names.WHOLE_GPU or key.startswith(RESOURCE_PREFIX)]
    shared = [key for key in (names.VGPU, names.VGPU_MEMORY) if key in wants]
    if kinds and len(kinds) + bool(shared) > 1:
        want = f"the only kind of GPU in its container: whole GPUs, a class or {names.VGPU}"
        raise BadRequest(pods.limit_field(name, kinds[0]), wants[kinds[0]], want)
    if not kinds:
        return None
    count = parse_whole(pods.limit_field(name, kinds[0]), wants[kinds[0]], 0, GPUS_MAX)
    return ShareRequest(count, WHOLE) if count else None


def _class(resources: Mapping[str, str], notes: Mapping[str, str]) -> str | None:
    named = pods.optional(notes, names.CLASS, parse_class_name)
    for field, key in resources.items():
        asked = parse_class_name(field, key.removeprefix(RESOURCE_PREFIX))
        if named not in {None, asked}:
            raise BadRequest(field, key, f"the only class in its pod, which also names {named}")
        named = asked
    return named


def _limit(notes: Mapping[str, str]) -> Milli | None:
    text = notes.get(names.LIMIT)
    if text is None:
        return None
    try:
        return Milli(parse_whole(names.LIMIT, text, 1, WHOLE))
    except BadRequest as error:
        raise BadRequest(names.LIMIT, text, error.want, hint=milli_hint(text)) from None


def _refuse_limits(request: PodRequest, policy: SharePolicy | None) -> None:
    """A limit that the policy contradicts, or that is missing, must not be guessed."""
    for container in request.containers:
        problem = "" if container.share is None else policy_problem(container.share, policy)
        if container.share is not None and problem:
            raise BadRequest(names.LIMIT, container.share.limit, f"{problem} (container {container.name})")


def _group(notes: Mapping[str, str]) -> PodGroup | None:
    name, size, least = (notes.get(each) for each in (names.GROUP, names.GROUP_SIZE, names.GROUP_MIN_COUNT))
    if name is None:
        if size is not None:
            raise BadRequest(names.GROUP, None, f"the name of the group: {names.GROUP_SIZE} needs it")
        return None  # the least number may be of another system's group
    if size is None:
        if least is None:
            want = f"the number of pods of the group, or {names.GROUP_MIN_COUNT} of them"
            raise BadRequest(names.GROUP_SIZE, None, want)
        return parse_group(names.GROUP, name, names.GROUP_MIN_COUNT, least)
    group = parse_group(names.GROUP, name, names.GROUP_SIZE, size)
    if least is None:
        return group
    return replace(group, min_count=parse_whole(names.GROUP_MIN_COUNT, least, 1, group.size))


def _renamed(notes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations under their new names; where both spellings are there, the new one counts."""
    if not names.RENAMED.keys() & notes.keys():
        return notes
    return {names.RENAMED.get(key, key): value for key, value in notes.items()} | {
        key: value for key, value in notes.items() if key not in names.RENAMED
    }


def _refuse_unknown(notes: Mapping[str, str]) -> None:
    """Refuse a misspelled `milligpu.dev/` annotation instead of ignoring it."""
    known = names.USER_ANNOTATIONS | {*names.GRANTED, names.USER}
    for key, value in notes.items():
        if key.startswith(names.PREFIX) and key not in known:
            allowed = ", ".join(sorted(name.removeprefix(names.PREFIX) for name in names.USER_ANNOTATIONS))
            raise BadRequest(key, value, f"written as one of {names.PREFIX}{{{allowed}}}")


def _refuse_unknown_resources(container: str, wants: Mapping[str, object]) -> None:
    for key, value in wants.items():
        if key.startswith((names.VGPU, names.PREFIX)) and key not in {names.VGPU, names.VGPU_MEMORY}:
            raise BadRequest(
                pods.limit_field(container, key), value, f"written as {names.VGPU} or {names.VGPU_MEMORY}"
            )


DIALECT = Dialect(
    "native",
    first_field,
    read_request,
    source="milligpu",
    forms=(
        DialectForm(
            "`nvidia.com/vgpu`, `nvidia.com/vgpu-memory`, `gpu-NAME`, annotations `milligpu.dev/…`",
            "[requests.md](requests.md)",
        ),
        DialectForm(
            "`milligpu.dev/remote-vgpu`, `milligpu.dev/remote-vgpu-memory`",
            "admission's names for a share of a [GPU server](remote.md#without-touching-the-image)",
        ),
    ),
    also_reads=frozenset({names.WHOLE_GPU}),
    resources=frozenset({names.VGPU, names.VGPU_MEMORY, *names.COUNTED_LOCALLY}),
    resource_patterns=(r"nvidia\.com/vgpu", "gpu-", r"milligpu\.dev/"),
    annotation_patterns=(r"milligpu\.dev/",),
    settings=(QOS_LIMITS,),
)
