"""Moving to milligpu from another system: what each workload will mean, what differs, and in which order. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from milligpu import dialects
from milligpu.dialects.describe import condition_text, share_columns
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest

Object: TypeAlias = Mapping[str, Any]


class FormerSystem(StrEnum):
    """Whose cluster it is today."""

    HAMI = "hami"
    NVIDIA = "nvidia"


_AGENT_HERE = "milligpu.dev/managed=true"
"""A label of nodes by which docs/install.md lets the chart choose where the agent runs."""


@dataclass(frozen=True, slots=True)
class MovedWorkload:
    """Pods of one owner that request GPUs in the same way."""

    namespace: str
    owner: str
    """Such as `Job/train`; a pod without an owner is its own."""
    pods: int
    dialect: str
    meaning: str
    """What it requests here; empty if it would be refused."""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class MovedNode:
    """A node with GPUs, and the commands that move it."""

    name: str
    gpu_pods: int
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """All that an admin needs to know before the first command."""

    workloads: tuple[MovedWorkload, ...]
    nodes: tuple[MovedNode, ...]
    """Those with the fewest pods first."""
    differences: tuple[str, ...]


def plan_migration(
    system: FormerSystem, nodes: Iterable[Object], pods: Sequence[Object], daemonsets: Iterable[Object]
) -> MigrationPlan:
    """Plan the move of a cluster, from its objects."""
    asking = [(pod, answer) for pod in pods if not _finished(pod) and (answer := _read(pod)) is not None]
    plugins = [each for each in daemonsets if _is_plugin(system, each)]
    busy: dict[str, int] = {}
    for pod, _ in asking:
        name: str = pod["spec"].get("nodeName", "")
        busy[name] = busy.get(name, 0) + 1
    moved = [
        MovedNode(name, busy.get(name, 0), tuple(_commands(system, node, plugins)))
        for node in nodes
        if _offers_gpus(node) and (name := node["metadata"]["name"])
    ]
    return MigrationPlan(
        tuple(_workloads(asking)),
        tuple(sorted(moved, key=lambda each: (each.gpu_pods, each.name))),
        tuple(_differences(system, moved, asking)),
    )


def _read(pod: Object) -> PodRequest | BadRequest | None:
    """What the pod requests, or why it would be refused; None if it requests no GPU."""
    try:
        request = dialects.read_pod({"metadata": pod["metadata"], "spec": pod["spec"]})
    except BadRequest as error:
        return error
    return request if request.wants_gpu else None


def _workloads(asking: Iterable[tuple[Object, PodRequest | BadRequest]]) -> Iterator[MovedWorkload]:
    counted: dict[tuple[str, str, str, str, str], int] = {}
    for pod, answer in asking:
        where = pod["metadata"]["namespace"], _owner(pod)
        key = (
            (*where, "", "", answer.message) if isinstance(answer, BadRequest) else (*where, *_meaning(answer), "")
        )
        counted[key] = counted.get(key, 0) + 1
    for (namespace, owner, dialect, meaning, refused), count in sorted(counted.items()):
        yield MovedWorkload(namespace, owner, count, dialect, meaning, refused)


def _meaning(request: PodRequest) -> tuple[str, str]:
    parts: list[str] = []
    for container in request.containers:
        if container.share is not None:
            gpus, compute, memory, limit = share_columns(container.share)
            amount = "whole" if container.share.whole else f"{compute} with memory {memory}"
            upper = f", up to {limit}" if limit else ""
            parts.append(f"{container.name}: {gpus} x {amount}{upper}")
    conditions = condition_text(request)
    return request.dialect, "; ".join([*parts, conditions] if conditions else parts)


def _differences(
    system: FormerSystem, moved: Sequence[MovedNode], asking: Sequence[tuple[Object, PodRequest | BadRequest]]
) -> Iterator[str]:
    yield (
        f"milligpu's agent goes to the nodes that its nodeSelector names: install the chart for {_AGENT_HERE}, as "
        "docs/install.md shows."
    )
    yield "A pod keeps its GPU and its system until it ends; pods that are created later belong to milligpu."
    match system:
        case FormerSystem.HAMI:
            yield (
                "Compute (gpucores) is guaranteed and held by leases; HAMi limits it over time, and not at all for "
                "pods without gpucores."
            )
            yield (
                "Memory is never over-committed: with HAMi's deviceMemoryScaling above 1, fewer pods fit. "
                "defaultMem and defaultCores of hami-scheduler-device do not count: a request without memory or "
                "cores is read as shown above."
            )
            yield "HAMi's scheduler name is replaced at admission; deviceSplitCount has no counterpart."
        case FormerSystem.NVIDIA:
            yield "nvidia.com/gpu is a whole GPU, also where time slicing made several of one."
            yield (
                "Pods on time-sliced GPUs want a share: replace nvidia.com/gpu by nvidia.com/vgpu (1000 is a GPU), "
                "or nvidia.com/gpu.shared by setting dialects.parts to the number of replicas."
            )
            yield "MIG instances (nvidia.com/mig-…) stay with NVIDIA's plugin: leave such nodes out."
    if any(isinstance(answer, BadRequest) for _, answer in asking):
        yield "Change the refused workloads first: their next pods would not be created."
    if not moved:
        yield "No node offers nvidia.com/gpu: is the other system already removed?"


def _commands(system: FormerSystem, node: Object, plugins: Iterable[Object]) -> Iterator[str]:
    name: str = node["metadata"]["name"]
    labels: dict[str, str] = node["metadata"].get("labels", {})
    yield f"kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"
    match system:
        case FormerSystem.HAMI:
            for key in sorted(_selectors(plugins) & labels.items()):
                yield f"kubectl label node {name} {key[0]}-"
        case FormerSystem.NVIDIA if any(key.startswith("nvidia.com/gpu.deploy.") for key in labels):
            yield f"kubectl label node {name} nvidia.com/gpu.deploy.device-plugin=false --overwrite"
        case FormerSystem.NVIDIA:
            for plugin in plugins:
                where, kind = plugin["metadata"]["namespace"], plugin["metadata"]["name"]
                yield f"# keep the DaemonSet {where}/{kind} off nodes with {_AGENT_HERE}: give it a node affinity"
    yield f"kubectl label node {name} {_AGENT_HERE}"
    yield f"kubectl uncordon {name}"


def _selectors(plugins: Iterable[Object]) -> set[tuple[str, str]]:
    """The labels by which the plugin's DaemonSets choose nodes."""
    return {
        pair
        for plugin in plugins
        for pair in plugin["spec"]["template"]["spec"].get("nodeSelector", {}).items()
        if not pair[0].startswith(("kubernetes.io/", "beta.kubernetes.io/"))
    }


def _is_plugin(system: FormerSystem, daemons: Object) -> bool:
    images = [each["image"] for each in daemons["spec"]["template"]["spec"]["containers"]]
    word = "hami" if system is FormerSystem.HAMI else "nvidia/k8s-device-plugin"
    return any(word in image for image in images)


def _offers_gpus(node: Object) -> bool:
    offered = node["status"].get("allocatable", {}).get(names.WHOLE_GPU, "0")
    return offered != "0" and names.INVENTORY not in node["metadata"].get("annotations", {})


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences", ())
    for owner in owners:
        if owner.get("controller"):
            return f"{owner['kind']}/{owner['name']}"
    return f"Pod/{pod['metadata']['name']}"


def _finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
