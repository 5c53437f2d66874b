"""A request as data for programs and as text for people; values that the manifest leaves out are left out."""

from typing import Any

from milligpu.model.request import ContainerKind, PodRequest, ShareRequest
from milligpu.model.requirements import ANY
from milligpu.model.units import show_mib, show_milli


def request_data(request: PodRequest) -> dict[str, Any]:
    """Return the request as JSON has it, with integers in milli-GPU and MiB."""
    data: dict[str, Any] = {
        "dialect": request.dialect,
        "containers": {
            container.name: _share_data(container.share, container.kind)
            for container in request.containers
            if container.share is not None
        },
        "policy": request.policy,
        "priority": request.priority or None,
        "strategy": request.strategy,
        "require": str(request.requirements) if request.requirements != ANY else None,
        "class": request.gpu_class,
        "affinity": request.locality.affinity,
        "anti-affinity": request.locality.anti_affinity,
        "exclusion": request.locality.exclusion,
        "group": None
        if request.group is None
        else {"name": request.group.name, "size": request.group.size, "least": request.group.min_count},
        "floor": request.floor,
    }
    return {key: value for key, value in data.items() if value is not None}


def _share_data(share: ShareRequest, kind: ContainerKind) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": None if kind is ContainerKind.MAIN else str(kind),
        "gpus": share.count,
        "whole": True if share.whole else None,
        "milli": share.milli,
        "mib": share.mib,
        "card": share.card_memory,
        "limit": share.limit,
    }
    return {key: value for key, value in data.items() if value is not None}


def share_columns(share: ShareRequest) -> tuple[str, str, str, str]:
    """Return four cells of a table: number of GPUs, and of each the share, the memory and the limit."""
    if share.whole:
        return str(share.count), "whole", "all", ""
    compute = "by memory" if share.milli is None else show_milli(share.milli)
    if share.mib is not None:
        memory = show_mib(share.mib)
    elif share.card_memory is not None:
        memory = f"{share.card_memory / 10:g}%"
    else:
        memory = "by share"
    return str(share.count), compute, memory, "" if share.limit is None else show_milli(share.limit)


def condition_text(request: PodRequest) -> str:
    """Return all conditions of the pod in one line, without its shares."""
    data = request_data(request)
    words = [f"{key}={value}" for key, value in data.items() if isinstance(value, (str, int)) and key != "dialect"]
    if request.group is not None:
        words.append(f"group={request.group.name} ({request.group.min_count} of {request.group.size})")
    return "; ".join(words)
