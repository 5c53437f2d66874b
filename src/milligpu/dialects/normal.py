"""The one form that every admitted pod has, whatever dialect it was written in.

Other systems' resources become `nvidia.com/vgpu`, so that the kubelet and ordinary ResourceQuotas count them.
Everything else that they request becomes `milligpu.dev/` annotations. Labels and annotations of the other system
stay, because selectors may name them; `milligpu.dev/dialect` marks the pod as converted. Reading a converted pod
gives the same request, and converting it again changes nothing. A new pod has no grant.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from milligpu.dialects import pod as pods
from milligpu.dialects import profiles
from milligpu.dialects.choose import KNOWN, read_pod
from milligpu.dialects.client_injection import inject_client
from milligpu.dialects.registry import DialectRegistry
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.dialects.shares import counted_vgpu, format_shares, is_plain, parse_shares
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_class import RESOURCE_PREFIX
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.requirements import ANY
from milligpu.model.units import WHOLE, Mib

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""With this value NVIDIA's runtime attaches no GPU, even if the image requests all."""

DEFAULT_SCHEDULER = "default-scheduler"
_LOCAL_NAMES = (names.VGPU, names.VGPU_MEMORY)
_REMOTE_NAMES = (names.REMOTE_VGPU, names.REMOTE_VGPU_MEMORY)


@dataclass(frozen=True, slots=True)
class NormalForm:
    """What depends on the cluster."""

    settings: DialectSettings = DEFAULTS
    scheduler: str = DEFAULT_SCHEDULER
    """The scheduler that calls the scheduler service."""
    largest_gpu: Mib | None = None
    """Memory of the cluster's largest GPU: for quotas, memory alone counts as its fraction of this."""
    known: DialectRegistry = KNOWN
    client_image: str = ""
    """The image with the client of GPU servers; without it no pod gets a remote share."""


def normalize(pod: pods.Json, form: NormalForm) -> dict[str, Any]:
    """Return the pod in its normal form. Raises `BadRequest` for an invalid request."""
    request = read_pod(pod, form.settings, form.known)
    result: dict[str, Any] = copy.deepcopy(dict(pod))
    _drop_grant(result)
    shares = {each.name: each.share for each in request.containers if each.share is not None}
    if shares:
        _refuse_node_name(pod)
        fresh = names.DIALECT not in pods.annotations(pod)
        _annotate(result, request, shares)
        _schedule(result, form)
        profiles.rewrite_selector(result)
        rewrite = form.known.by_name[request.dialect].rewrite if fresh else None
        if rewrite is not None:
            rewrite(result, pod, shares)
    if request.remote:
        inject_client(result, frozenset(shares), form.client_image)
    counted = _REMOTE_NAMES if request.remote else _LOCAL_NAMES
    for container in pods.changeable_containers(result):
        asks = container["name"] in shares
        _hide(container, shown=not request.remote if asks else _has_other_device(container))
        if shares:
            _count(container, shares.get(container["name"]), form, counted)
    return result


def hide_gpus_from_debug_containers(pod: pods.Json, known: pods.Json) -> dict[str, Any]:
    """Return the pod with GPUs hidden from its new ephemeral containers; the API server lets no other change."""
    had = {name for name, _ in pods.ephemeral(known)}
    result: dict[str, Any] = copy.deepcopy(dict(pod))
    spec: dict[str, Any] = result.get("spec") or {}
    joined: list[dict[str, Any]] = spec.get("ephemeralContainers") or []
    for container in joined:
        if container["name"] not in had:
            _hide(container, shown=False)
    return result


def _drop_grant(pod: dict[str, Any]) -> None:
    """Remove the grant of the pod that a new one was copied from, as by `kubectl debug --copy-to`."""
    notes = pods.section(pod, "metadata").get("annotations")
    if isinstance(notes, dict):
        for written in names.GRANTED:
            cast("dict[str, Any]", notes).pop(written, None)


def _refuse_node_name(pod: pods.Json) -> None:
    node = pods.section(pod, "spec").get("nodeName")
    if node:
        hint = f"write nodeSelector: {{kubernetes.io/hostname: {node}}}"
        raise BadRequest("spec.nodeName", node, "empty in a new pod: the scheduler chooses its GPUs", hint=hint)


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
    if request.group is not None:
        said |= {names.GROUP: request.group.name, names.GROUP_SIZE: request.group.size}
        said |= {names.GROUP_MIN_COUNT: request.group.min_count}
    # Annotations that are there were read, so they say the same; only the QoS class may have changed the shares.
    if detailed and names.SHARES in notes:
        written = parse_shares(names.SHARES, notes[names.SHARES])
        if any(written.get(name) != share for name, share in detailed.items()):
            notes[names.SHARES] = format_shares({**written, **detailed})
    metadata["annotations"] = {key: str(value) for key, value in said.items() if value is not None} | notes


def _limited(notes: Mapping[str, str], shares: Mapping[str, ShareRequest]) -> Mapping[str, ShareRequest]:
    """Return the shares without the limit that an annotation gives to all of them."""
    if names.LIMIT not in notes:
        return shares
    return {name: replace(share, limit=None) for name, share in shares.items()}


def _schedule(pod: dict[str, Any], form: NormalForm) -> None:
    """Name our scheduler where the pod names none, the default or another system's; any other name stays."""
    spec = cast("dict[str, Any]", pod["spec"])
    if (spec.get("schedulerName") or DEFAULT_SCHEDULER) in {DEFAULT_SCHEDULER, *form.known.schedulers}:
        spec["schedulerName"] = form.scheduler


def _hide(container: dict[str, Any], *, shown: bool) -> None:
    """Hide all GPUs from a container without a share; one with a share sees the GPUs of its grant."""
    found = pods.sequence(f"containers[{container['name']}].env", container.get("env"))
    others = [entry for entry in found if not _is_visible(entry)]
    if not shown:
        others.append({"name": VISIBLE, "value": VOID})
    if others != found:
        container["env"] = others


def _has_other_device(container: pods.Json) -> bool:
    """Whether the container requests a device that only NVIDIA's own plugin has, such as a MIG partition."""
    return any(key.startswith("nvidia.com/") for key in pods.device_limits(container["name"], container))


def _is_visible(entry: object) -> bool:
    return isinstance(entry, Mapping) and cast("Mapping[str, object]", entry).get("name") == VISIBLE


def _count(
    container: dict[str, Any], share: ShareRequest | None, form: NormalForm, counted: tuple[str, str]
) -> None:
    resources: dict[str, Any] = dict(container.get("resources") or {})
    wanted: dict[str, str] = {}
    if share is not None:
        wanted[counted[0]] = str(counted_vgpu(share, unsaid=_unsaid(share, form.largest_gpu)))
        if share.mib is not None:
            wanted[counted[1]] = str(share.mib)
    for key in ("limits", "requests"):
        found: dict[str, Any] = resources.get(key) or {}
        kept = {name: amount for name, amount in found.items() if not _is_request(name, form.known)}
        if kept or wanted or found:
            resources[key] = {**kept, **wanted}
    if resources or "resources" in container:
        container["resources"] = resources


def _is_request(resource: str, known: DialectRegistry) -> bool:
    return resource in known.resources or resource.startswith(RESOURCE_PREFIX)


def _unsaid(share: ShareRequest, largest_gpu: Mib | None) -> int:
    """Return what memory alone counts: its fraction of the largest GPU, so that no node seems full too early."""
    if share.card_memory is not None:
        return share.card_memory
    if share.mib is None or largest_gpu is None:
        return 1
    return min(WHOLE, max(1, WHOLE * share.mib // largest_gpu))
