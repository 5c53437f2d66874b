"""Updates on a full GPU: which pods of a service are new, which are old, and what each should be guaranteed.

Nothing is remembered: each step follows from the pods as they are, so whoever leads goes on from any step.

1. A new pod waits: old pods lend it their guarantee, until it is bound.
2. It loads its model in idle time, and the old pods have their guarantee back.
3. It is Ready: it has the guarantee, and the old pods have what is left until they are gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class UpdateRole(Enum):
    """What a pod is in an update of its service."""

    NONE = "none"
    """There is no update on its GPUs."""
    LOADS = "loads"
    """New and not Ready: it shares a GPU with a pod of the former version."""
    TAKES = "takes"
    """New and Ready."""
    SERVES = "serves"
    """Old: it serves while the new pod on its GPU loads."""
    LEAVES = "leaves"
    """Old: a Ready pod of the new version is on its GPU."""


@dataclass(frozen=True, slots=True)
class ServicePod:
    """A bound pod of a service."""

    uid: str
    version: str
    """Of its template: the hash that its ReplicaSet or StatefulSet wrote."""
    number: int
    """Pods are numbered in the order in which they were first seen."""
    ready: bool
    leaving: bool
    gpus: tuple[tuple[str, str], ...]
    present: int
    """Milli-GPU that it is guaranteed on each of its GPUs."""
    template: int
    """Milli-GPU of its template."""
    resizable: bool = True
    """Whether the service sets its share: not of whole GPUs, nor of pods that users resized."""
    borrows: bool = True
    """Whether it may hold more than its template: not in a queue, whose ceiling counts what it holds."""
    fixed: bool = False
    """Whether its GPU has the share policy `fixed`, where nobody gets idle time."""


def newest_version(pods: Iterable[ServicePod], waiting: Mapping[str, tuple[str, int]]) -> str:
    """Return the version of the youngest pod; `waiting` has version and number of pods that wait, by uid."""
    known = [(each.number, each.version) for each in pods]
    known += [(number, version) for version, number in waiting.values()]
    return max(known, default=(0, ""))[1]


def roles(pods: Sequence[ServicePod], newest: str) -> dict[str, UpdateRole]:
    """Return what each pod is."""
    on_gpu: dict[tuple[str, str], list[ServicePod]] = {}
    for each in pods:
        for gpu in each.gpus:
            on_gpu.setdefault(gpu, []).append(each)
    return {each.uid: _role(each, [one for gpu in each.gpus for one in on_gpu[gpu]], newest) for each in pods}


def _role(pod: ServicePod, here: Sequence[ServicePod], newest: str) -> UpdateRole:
    others = [each for each in here if (each.version == newest) != (pod.version == newest)]
    if not others:
        return UpdateRole.NONE
    if pod.version == newest:
        if pod.ready:
            return UpdateRole.TAKES
        serving = any(each.ready and not each.leaving for each in others)
        return UpdateRole.LOADS if serving else UpdateRole.NONE
    return UpdateRole.LEAVES if any(each.ready for each in others) else UpdateRole.SERVES


def claim(pod: ServicePod, role: UpdateRole, share: int, *, recalled: bool, lends: bool) -> tuple[int, int, int]:
    """Return what a pod should have of its own, what as a loan, and its rank; `share` is the service's."""
    own = min(share, pod.template)
    if role is UpdateRole.LOADS:
        return (own // 2 if pod.fixed else 0), 0, 1
    if role is UpdateRole.SERVES and pod.fixed:
        own //= 2
    if lends:
        return 0, 0, 2
    if role is UpdateRole.LEAVES:
        return 0, own, 3
    return own, max(0, share - own) if pod.borrows and not recalled else 0, 0
