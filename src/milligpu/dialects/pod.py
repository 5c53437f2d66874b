"""Pods as dictionaries: the few places that every dialect looks at, read with care."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard, TypeVar, assert_never, cast

from milligpu.model.errors import BadRequest
from milligpu.model.request import ContainerRequest, Kind, PodRef, PodRequest, ShareRequest
from milligpu.model.units import parse_quantity

Json = Mapping[str, Any]

_BYTES_PER_MIB = 1024 * 1024
_T = TypeVar("_T")


def request(
    pod: Json, dialect: str, share: Callable[[str, Mapping[str, object]], ShareRequest | None]
) -> PodRequest:
    """The pod with what `share` reads from each container's name and devices; dialects add the rest to it."""
    return PodRequest(
        pod=reference(pod),
        containers=tuple(
            ContainerRequest(name, share(name, extended(name, container)), kind)
            for name, kind, container in containers(pod)
        ),
        dialect=dialect,
        cpu_milli=node_demand(pod, "cpu", Fraction(1000)),
        memory_mib=node_demand(pod, "memory", Fraction(1, _BYTES_PER_MIB)),
    )


def reference(pod: Json) -> PodRef:
    """Which pod it is; a manifest that was not applied yet has no uid, and often no namespace."""
    metadata = section(pod, "metadata")
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str):
        raise BadRequest("metadata.name", name, "the pod's name")
    return PodRef(str(metadata.get("namespace") or "default"), name, str(metadata.get("uid") or ""))


def annotations(pod: Json) -> Mapping[str, str]:
    """The pod's annotations; Kubernetes allows only text there."""
    return _texts(pod, "annotations")


def labels(pod: Json) -> Mapping[str, str]:
    """The pod's labels, likewise."""
    return _texts(pod, "labels")


def _texts(pod: Json, key: str) -> Mapping[str, str]:
    found = section(section(pod, "metadata"), key, f"metadata.{key}")
    for name, value in found.items():
        if not isinstance(value, str):
            raise BadRequest(f"metadata.{key}[{name}]", value, "text", hint="put the value in quotes")
    return found


def optional(texts: Mapping[str, str], key: str, parse: Callable[[str, object], _T]) -> _T | None:
    """What an annotation or label says, or None where it is not written."""
    text = texts.get(key)
    return None if text is None else parse(key, text)


def containers(pod: Json) -> Iterator[tuple[str, Kind, Json]]:
    """Each container with its name and kind, init containers first; ephemeral ones never get a GPU."""
    spec = section(pod, "spec")
    for key, kind in (("initContainers", Kind.INIT), ("containers", Kind.MAIN)):
        for name, container in _named(spec, key):
            sidecar = kind is Kind.INIT and container.get("restartPolicy") == "Always"
            yield name, Kind.SIDECAR if sidecar else kind, container


def _named(spec: Json, key: str) -> Iterator[tuple[str, Json]]:
    for number, container in enumerate(sequence(f"spec.{key}", spec.get(key))):
        if not _is_mapping(container) or not isinstance(container.get("name"), str):
            raise BadRequest(f"spec.{key}[{number}]", container, "a container with a name")
        yield container["name"], container


def ephemeral(pod: Json) -> Iterator[tuple[str, Json]]:
    """Containers that somebody put into a running pod to look around, with their names."""
    return _named(section(pod, "spec"), "ephemeralContainers")


def refuse_elsewhere(pod: Json) -> None:
    """Devices belong to containers: Kubernetes gives none to a pod as a whole, nor to ephemeral containers."""
    spec = section(pod, "spec")
    places = [("spec.resources", spec)]
    places += [(f"ephemeralContainers[{name}].resources", each) for name, each in ephemeral(pod)]
    for where, place in places:
        for kind in ("limits", "requests"):
            for key, value in section(section(place, "resources", where), kind, f"{where}.{kind}").items():
                if is_device(key):
                    raise BadRequest(f"{where}.{kind}[{key}]", value, "devices in a container's resources.limits")


def first_main(pod: Json) -> str:
    """The container that gets what a dialect asks for the pod as a whole."""
    return next((name for name, kind, _ in containers(pod) if kind is Kind.MAIN), "")


def is_device(key: str) -> bool:
    """Whether a resource is a device; cpu, memory and their kin have no domain in their names.

    The talk's class resources (`gpu-gold`) have none either.
    """
    return ("/" in key and not key.startswith("kubernetes.io/")) or key.startswith("gpu-")


def extended(name: str, container: Json) -> Mapping[str, object]:
    """What a container asks for in devices: its limits, and requests where there is no limit.

    Devices cannot be overcommitted: where both are there they must be equal, as the API server wants it.
    """
    where = f"containers[{name}].resources"
    requests, limits = _resources(name, container)
    for key in limits.keys() & requests.keys():
        if limits[key] == requests[key] or not is_device(key):
            continue  # almost always
        if parse_quantity(f"{where}.limits[{key}]", limits[key]) != parse_quantity(
            f"{where}.requests[{key}]", requests[key]
        ):
            raise BadRequest(f"{where}.requests[{key}]", requests[key], f"its limit, {limits[key]}")
    return {key: value for key, value in {**requests, **limits}.items() if is_device(key)}


@dataclass(frozen=True, slots=True)
class Words:
    """Every place of a pod that a dialect may be recognised by, looked up once for all of them."""

    devices: Mapping[str, str]
    """Every device resource that any container names, with the field where it stands."""
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    commands: Mapping[str, Json]
    """The containers that have a command or arguments."""


def words(pod: Json) -> Words:
    """What a pod says, by place."""
    found: dict[str, str] = {}
    commands: dict[str, Json] = {}
    for name, _, container in containers(pod):
        for key in extended(name, container):
            found.setdefault(key, field(name, key))
        if container.get("command") or container.get("args"):
            commands[name] = container
    return Words(found, annotations(pod), labels(pod), commands)


def field(container: str, resource: str) -> str:
    """How refusals name a container's resource."""
    return f"containers[{container}].resources.limits[{resource}]"


def node_demand(pod: Json, resource: str, scale: Fraction) -> int:
    """What the pod needs of an ordinary resource, by Kubernetes' formula, rounded up after scaling."""
    spec = section(pod, "spec")
    whole = section(section(spec, "resources", "spec.resources"), "requests", "spec.resources.requests")
    overhead = parse_quantity(f"spec.overhead[{resource}]", section(spec, "overhead").get(resource, 0))
    if resource in whole:  # a pod's own request stands for those of its containers
        return math.ceil(
            (parse_quantity(f"spec.resources.requests[{resource}]", whole[resource]) + overhead) * scale
        )
    return math.ceil((_containers_demand(pod, resource) + overhead) * scale)


def _containers_demand(pod: Json, resource: str) -> Fraction:
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
    return max(peak, main + sidecars)


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


def sequence(where: str, value: object) -> list[object]:
    """A part that is a list or absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(where, value, "a list")
    return cast("list[object]", value)


def _is_mapping(value: object) -> TypeGuard[Json]:
    # What JSON and YAML give is a dict, and asking an abstract class costs ten times as much.
    return type(value) is dict or isinstance(value, Mapping)
