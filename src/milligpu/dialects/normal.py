"""The one form that every admitted pod has, whatever dialect it was written in.

Other systems' resources become `nvidia.com/vgpu`, so that the kubelet and an ordinary ResourceQuota count all of
them; what they say beside becomes annotations of ours. Labels and annotations of the other system stay, for
selectors may name them; `milligpu.dev/dialect` says that they were read. A pod in this form reads as the same
request as before, and is left as it is.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from milligpu.dialects import bitfusion
from milligpu.dialects import pod as pods
from milligpu.dialects.choose import RESOURCES, read
from milligpu.dialects.native import CLASS_RESOURCE
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.dialects.shares import counted, format_shares, is_plain
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import ANY
from milligpu.model.units import WHOLE, Mib

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""NVIDIA's runtime then gives the container nothing, though its image asks for all."""

DEFAULT_SCHEDULER = "default-scheduler"
# Schedulers of the other systems, which are not here; a pod that names any other one keeps it.
_SCHEDULERS = frozenset({"", DEFAULT_SCHEDULER, "kubeshare-scheduler", "hami-scheduler", "kai-scheduler"})


@dataclass(frozen=True, slots=True)
class Form:
    """What the cluster decides about the form."""

    settings: Settings = DEFAULTS
    scheduler: str = DEFAULT_SCHEDULER
    """The scheduler that asks us."""
    card: Mib | None = None
    """The largest card's memory: for quotas, memory alone counts as so much compute as it is of this card."""


def normalise(pod: pods.Json, form: Form) -> dict[str, Any]:
    """The pod in its one form; a bad request is refused."""
    request = read(pod, form.settings)
    result: dict[str, Any] = copy.deepcopy(dict(pod))
    shares = {each.name: each.share for each in request.containers if each.share is not None}
    if shares:
        _refuse_node_name(pod)
        fresh = names.DIALECT not in pods.annotations(pod)
        _annotate(result, request, shares)
        _schedule(result, form.scheduler)
        if fresh and request.dialect == "bitfusion":
            _as_bitfusion(result, pod, shares)
    for container in _containers(result):
        _hide(container, shown=container["name"] in shares or _has_other_device(container))
        if shares:
            _count(container, shares.get(container["name"]), form.card)
    return result


def hide_from_new(pod: pods.Json, known: pods.Json) -> dict[str, Any]:
    """The pod with no GPU for the ephemeral containers that it did not have before; those it had cannot change."""
    had = {name for name, _ in pods.ephemeral(known)}
    result: dict[str, Any] = copy.deepcopy(dict(pod))
    spec: dict[str, Any] = result.get("spec") or {}
    joined: list[dict[str, Any]] = spec.get("ephemeralContainers") or []
    for container in joined:
        if container["name"] not in had:
            _hide(container, shown=False)
    return result


def _refuse_node_name(pod: pods.Json) -> None:
    node = pods.section(pod, "spec").get("nodeName")
    if node:
        hint = f"write nodeSelector: {{kubernetes.io/hostname: {node}}}"
        raise BadRequest("spec.nodeName", node, "no node in a new pod: its GPUs come from the scheduler", hint=hint)


def _annotate(pod: dict[str, Any], request: PodRequest, shares: Mapping[str, ShareRequest]) -> None:
    metadata = cast("dict[str, Any]", pod.setdefault("metadata", {}))
    notes: dict[str, str] = dict(metadata.get("annotations") or {})
    detailed = {name: share for name, share in _limited(notes, shares).items() if not is_plain(share)}
    said: dict[str, object] = {
        names.DIALECT: request.dialect,
        names.SHARES: format_shares(detailed) if detailed else None,
        names.POLICY: request.policy,
        names.PRIORITY: request.priority or None,
        names.STRATEGY: request.strategy,
        names.REQUIRE: request.requirements if request.requirements != ANY else None,
        names.CLASS: request.gpu_class,
        names.AFFINITY: request.locality.affinity,
        names.ANTI_AFFINITY: request.locality.anti_affinity,
        names.EXCLUSION: request.locality.exclusion,
    }
    if request.gang is not None:
        said |= {names.GROUP: request.gang.name, names.GROUP_SIZE: request.gang.size}
        said |= {names.GROUP_LEAST: request.gang.least}
    # What stands there already was read from there.
    metadata["annotations"] = {key: str(value) for key, value in said.items() if value is not None} | notes


def _limited(notes: Mapping[str, str], shares: Mapping[str, ShareRequest]) -> Mapping[str, ShareRequest]:
    """The shares without the ceiling that the pod's own annotation gives all of them."""
    if names.LIMIT not in notes:
        return shares
    return {name: replace(share, limit=None) for name, share in shares.items()}


def _schedule(pod: dict[str, Any], scheduler: str) -> None:
    spec = cast("dict[str, Any]", pod["spec"])
    if (spec.get("schedulerName") or "") in _SCHEDULERS:
        spec["schedulerName"] = scheduler


def _as_bitfusion(result: dict[str, Any], pod: pods.Json, shares: Mapping[str, ShareRequest]) -> None:
    """Its servers are nodes here, its webhook handed commands to a shell, and nobody needs its program."""
    spec = cast("dict[str, Any]", result["spec"])
    host = bitfusion.host(pod)
    if host is not None:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), "kubernetes.io/hostname": host}
    for container in _containers(result):
        if container["name"] in shares:
            run = bitfusion.unwrap(container)
            for key in ("command", "args"):
                container.pop(key, None)
            container.update(run)
    if bitfusion.wraps(pod):
        for container in _containers(result):
            words = pods.sequence(f"containers[{container['name']}].command", container.get("command"))
            if container["name"] in shares and words:
                line = " ".join(str(word) for word in words if str(word).lower() not in {"/bin/bash", "-c"})
                container["command"] = ["/bin/bash", "-c", line]


def _containers(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    spec: dict[str, Any] = pod.get("spec") or {}
    for key in ("initContainers", "containers"):
        yield from spec.get(key) or []


def _hide(container: dict[str, Any], *, shown: bool) -> None:
    """A container without a share sees no GPU; one with a share sees those of its grant, not those it names."""
    found = pods.sequence(f"containers[{container['name']}].env", container.get("env"))
    others = [entry for entry in found if not _is_visible(entry)]
    if not shown:
        others.append({"name": VISIBLE, "value": VOID})
    if others != found:
        container["env"] = others


def _has_other_device(container: pods.Json) -> bool:
    """Whether NVIDIA's own plugin gives it something that we do not hand out, such as a MIG partition."""
    return any(key.startswith("nvidia.com/") for key in pods.extended(container["name"], container))


def _is_visible(entry: object) -> bool:
    return isinstance(entry, Mapping) and cast("Mapping[str, object]", entry).get("name") == VISIBLE


def _count(container: dict[str, Any], share: ShareRequest | None, card: Mib | None) -> None:
    resources: dict[str, Any] = dict(container.get("resources") or {})
    wanted: dict[str, str] = {}
    if share is not None:
        wanted[names.VGPU] = str(counted(share, unsaid=_unsaid(share, card)))
        if share.mib is not None:
            wanted[names.VGPU_MEMORY] = str(share.mib)
    for key in ("limits", "requests"):
        found: dict[str, Any] = resources.get(key) or {}
        kept = {name: amount for name, amount in found.items() if not _is_ours(name)}
        if kept or wanted or found:
            resources[key] = {**kept, **wanted}
    if resources or "resources" in container:
        container["resources"] = resources


def _is_ours(resource: str) -> bool:
    return resource in RESOURCES or resource.startswith(CLASS_RESOURCE)


def _unsaid(share: ShareRequest, card: Mib | None) -> int:
    """What memory alone counts for: its part of the largest card, so that no node seems full before it is."""
    if share.card_memory is not None:
        return share.card_memory
    if share.mib is None or card is None:
        return 1
    return min(WHOLE, max(1, WHOLE * share.mib // card))
