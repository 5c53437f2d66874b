"""What a pod prefers or requires beyond its own node: only kube-scheduler can compare nodes by it.

A pod that prefers some nodes is offered to kube-scheduler on every node whose GPUs fit, and kube-scheduler chooses.
Pods that depend on other pods or on volumes are not nominated either, because a nominated node is taken without a
look at the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

_ANYWAY = "ScheduleAnyway"


class _PreferredAffinity(msgspec.Struct):
    preferredDuringSchedulingIgnoredDuringExecution: list[msgspec.Raw] | None = None
    requiredDuringSchedulingIgnoredDuringExecution: Any = None


class _Affinity(msgspec.Struct):
    nodeAffinity: _PreferredAffinity | None = None
    podAffinity: _PreferredAffinity | None = None
    podAntiAffinity: _PreferredAffinity | None = None


class _Spread(msgspec.Struct):
    whenUnsatisfiable: str = ""


class _Volume(msgspec.Struct):
    persistentVolumeClaim: Any = None
    ephemeral: Any = None


class _Container(msgspec.Struct):
    image: str = ""


class _Spec(msgspec.Struct):
    affinity: _Affinity | None = None
    topologySpreadConstraints: list[_Spread] | None = None
    volumes: list[_Volume] | None = None
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None


_decoder = msgspec.json.Decoder(_Spec)


@dataclass(frozen=True, slots=True)
class Preferences:
    """What kube-scheduler has to weigh or to check for a pod."""

    scored: bool = False
    """Whether the pod prefers some nodes: by node affinity, by affinity to pods, or by spreading."""
    dependent: bool = False
    """Whether other pods or volumes decide on which nodes the pod may be."""
    images: tuple[str, ...] = ()
    """The pod's images as nodes report them; nodes that have a large one are preferred."""


NO_PREFERENCES = Preferences()


def read_preferences(spec: bytes | msgspec.Raw) -> Preferences:
    """Read a pod's spec. Raises `msgspec.DecodeError` for what the API server would not accept."""
    found = _decoder.decode(spec)
    affinity = found.affinity or _Affinity()
    by_pods = [each for each in (affinity.podAffinity, affinity.podAntiAffinity) if each is not None]
    preferred = [each for each in (affinity.nodeAffinity, *by_pods) if each is not None]
    spreads = found.topologySpreadConstraints or []
    return Preferences(
        scored=any(each.preferredDuringSchedulingIgnoredDuringExecution for each in preferred)
        or any(each.whenUnsatisfiable == _ANYWAY for each in spreads),
        dependent=any(each.requiredDuringSchedulingIgnoredDuringExecution for each in by_pods)
        or any(each.whenUnsatisfiable != _ANYWAY for each in spreads)
        or any(each.persistentVolumeClaim or each.ephemeral for each in found.volumes or ()),
        images=tuple(sorted(set(_images((*(found.containers or ()), *(found.initContainers or ())))))),
    )


def _images(containers: Iterable[_Container]) -> Iterable[str]:
    """The images with a tag, as kube-scheduler compares them with those of nodes."""
    for each in containers:
        if each.image:
            name = each.image
            yield name if ":" in name.rpartition("/")[2] else f"{name}:latest"
