"""Pods as dictionaries: the few places that every dialect looks at, read with care."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeGuard, assert_never, cast

from milligpu.model.errors import BadRequest
from milligpu.model.request import Kind, PodRef
from milligpu.model.units import parse_quantity

Json = Mapping[str, Any]


def reference(pod: Json) -> PodRef:
    """Which pod it is; a manifest that was not applied yet has no uid, and often no namespace."""
    metadata = section(pod, "metadata")
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str):
        raise BadRequest("metadata.name", name, "the pod's name")
    return PodRef(str(metadata.get("namespace") or "default"), name, str(metadata.get("uid") or ""))


def annotations(pod: Json) -> Mapping[str, str]:
    """The pod's annotations; Kubernetes allows only text there."""
    found = section(section(pod, "metadata"), "annotations", "metadata.annotations")
    for key, value in found.items():
        if not isinstance(value, str):
            raise BadRequest(f"metadata.annotations[{key}]", value, "text", hint="put the value in quotes")
    return found


def containers(pod: Json) -> Iterator[tuple[str, Kind, Json]]:
    """Each container with its name and kind, init containers first; ephemeral ones never get a GPU."""
    spec = section(pod, "spec")
    for key, kind in (("initContainers", Kind.INIT), ("containers", Kind.MAIN)):
        for number, container in enumerate(_list(f"spec.{key}", spec.get(key))):
            where = f"spec.{key}[{number}]"
            if not _is_mapping(container) or not isinstance(container.get("name"), str):
                raise BadRequest(where, container, "a container with a name")
            sidecar = kind is Kind.INIT and container.get("restartPolicy") == "Always"
            yield container["name"], Kind.SIDECAR if sidecar else kind, container


def extended(name: str, container: Json) -> Mapping[str, object]:
    """What a container asks for in devices: its limits, and requests where there is no limit.

    Devices cannot be overcommitted: where both are there they must be equal, as the API server wants it.
    """
    where = f"containers[{name}].resources"
    requests, limits = _resources(name, container)
    for key in limits.keys() & requests.keys():
        if "/" in key and parse_quantity(f"{where}.limits[{key}]", limits[key]) != parse_quantity(
            f"{where}.requests[{key}]", requests[key]
        ):
            raise BadRequest(f"{where}.requests[{key}]", requests[key], f"its limit, {limits[key]}")
    # cpu, memory and their kin have no domain in their names; the talk's gpu-gold has none either.
    return {key: value for key, value in {**requests, **limits}.items() if "/" in key or key.startswith("gpu-")}


def node_demand(pod: Json, resource: str, scale: Fraction) -> int:
    """What the pod needs of an ordinary resource, by Kubernetes' formula, rounded up after scaling."""
    sidecars = main = peak = Fraction(0)
    for name, kind, container in containers(pod):
        requests, limits = _resources(name, container)
        value = requests.get(resource, limits.get(resource, 0))
        amount = parse_quantity(f"containers[{name}].resources.requests[{resource}]", value)
        match kind:
            case Kind.MAIN:
                main += amount
            case Kind.SIDECAR:
                sidecars += amount
                peak = max(peak, sidecars)
            case Kind.INIT:
                peak = max(peak, sidecars + amount)
            case _:
                assert_never(kind)
    overhead = parse_quantity(
        f"spec.overhead[{resource}]", section(section(pod, "spec"), "overhead").get(resource, 0)
    )
    return math.ceil((max(peak, main + sidecars) + overhead) * scale)


def _resources(name: str, container: Json) -> tuple[Json, Json]:
    both = section(container, "resources", f"containers[{name}].resources")
    return section(both, "requests", f"containers[{name}].resources.requests"), section(
        both, "limits", f"containers[{name}].resources.limits"
    )


def section(parent: Json, key: str, where: str = "") -> Json:
    """A part that is a mapping or absent."""
    found = parent.get(key)
    if found is None:
        return {}
    if not _is_mapping(found):
        raise BadRequest(where or key, found, "a mapping")
    return found


def _list(where: str, value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(where, value, "a list")
    return cast("list[object]", value)


def _is_mapping(value: object) -> TypeGuard[Json]:
    return isinstance(value, Mapping)
