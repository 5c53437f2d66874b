"""The largest share of each GPU model, and of each class, that is available now."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from milligpu.cluster.state import ClusterState
from milligpu.model.attach import server_of_node
from milligpu.model.gpu import Gpu, GpuState, SharingMode
from milligpu.model.gpu_class import GpuClass, GpuClasses
from milligpu.model.versions import DottedVersion
from milligpu.wire.kubernetes import KubeGpuClass


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    """What is free of one GPU model."""

    model: str
    gpus: int
    whole: int
    """GPUs that no pod holds a share of."""
    milli: int
    """The compute of the largest share that one GPU can give; `mib` is the memory there."""
    mib: int
    where: str
    total: int
    """The free compute of all GPUs together."""


@dataclass(frozen=True, slots=True)
class ClassCapacity:
    """What is free of the GPUs of one class."""

    name: str
    requirements: str
    fallback: str
    ready: bool
    reason: str
    message: str
    gpus: int
    whole: int
    """GPUs that no pod holds a share of."""
    milli: int
    """The compute of the largest share that one GPU can give; `mib` is the memory there."""
    mib: int
    where: str
    total: int
    """The free compute of all its GPUs together."""
    driver: str
    """The versions of the drivers of its GPUs, oldest first."""
    cuda: str


@dataclass(frozen=True, slots=True)
class _FreeGpu:
    node: str
    gpu: Gpu
    milli: int
    mib: int
    empty: bool


def capacity_by_model(state: ClusterState) -> list[ModelCapacity]:
    """Return what each model has free; GPUs that are cordoned, unhealthy or not shared count as full."""
    found: dict[str, list[_FreeGpu]] = {}
    for each in _free_gpus(state):
        remote = server_of_node(each.node) is not None
        found.setdefault(f"{each.gpu.model} (remote)" if remote else each.gpu.model, []).append(each)
    return [ModelCapacity(model, *_sum(gpus)) for model, gpus in sorted(found.items())]


def capacity_by_class(state: ClusterState, objects: Iterable[KubeGpuClass]) -> list[ClassCapacity]:
    """Return what each class has free; a GPU may be of several classes."""
    gpus = list(_free_gpus(state))
    texts = {each.metadata.name: each.spec.requirements for each in objects}
    return [_class_capacity(state.placer.classes, each, texts[each.name], gpus) for each in state.placer.classes]


def _class_capacity(classes: GpuClasses, found: GpuClass, text: str, gpus: list[_FreeGpu]) -> ClassCapacity:
    wants, condition = found.requirements, classes.condition(found.name)
    mine = [each for each in gpus if wants is not None and wants.refuse(each.node, each.gpu) is None]
    return ClassCapacity(
        found.name,
        text,
        found.fallback,
        condition.ready,
        condition.reason,
        condition.message,
        *_sum(mine),
        show_versions(each.gpu.driver for each in mine),
        show_versions(each.gpu.cuda for each in mine),
    )


def show_versions(found: Iterable[DottedVersion | None]) -> str:
    """Each version once, oldest first, and whether some are unknown; empty if none is known."""
    found = set(found)
    known = [str(each) for each in sorted(each for each in found if each is not None)]
    return ", ".join([*known, "unknown"] if known and None in found else known)


def _free_gpus(state: ClusterState) -> Iterator[_FreeGpu]:
    snap = state.placer.snapshot
    for node in snap.nodes.values():
        for gpu in node.gpus:
            cell = snap.cell_of[node.name, gpu.uuid]
            open_ = snap.state(node.name, gpu.uuid) is GpuState.OK and gpu.mode is not SharingMode.MIG
            empty = open_ and not snap.tenants[cell]
            shared = open_ and (empty or gpu.mode is not SharingMode.WHOLE)
            milli, mib = (int(snap.milli[cell]), int(snap.mib[cell])) if shared else (0, 0)
            yield _FreeGpu(node.name, gpu, max(0, milli), max(0, mib), empty)


def _sum(gpus: list[_FreeGpu]) -> tuple[int, int, int, int, str, int]:
    """Number, empty ones, the largest share with its place, and the free compute of all."""
    largest = max(gpus, key=lambda each: (each.milli, each.mib), default=None)
    whole, total = sum(each.empty for each in gpus), sum(each.milli for each in gpus)
    if largest is None or not largest.milli:
        return len(gpus), whole, 0, largest.mib if largest else 0, "", total
    return len(gpus), whole, largest.milli, largest.mib, f"{largest.node}/{largest.gpu.uuid}", total
