"""Pods as dictionaries: the parts that all dialects read, with an error for each part that has the wrong type."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard, TypeVar, assert_never, cast

from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import ContainerKind, ContainerRequest, PodRef, PodRequest, ShareRequest
from milligpu.model.units import BYTES_PER_MIB, parse_quantity

Json = Mapping[str, Any]

_T = TypeVar("_T")


def make_request(
    pod: Json, dialect: str, share: Callable[[str, Mapping[str, object]], ShareRequest | None]
) -> PodRequest:
    """Return the pod's request; `share` reads each container's share from its name and devices."""
    return PodRequest(
        pod=reference(pod),
        containers=tuple(
            ContainerRequest(name, share(name, device_limits(name, container)), kind)
            for name, kind, container in containers(pod)
        ),
        dialect=dialect,
        cpu_milli=node_demand(pod, "cpu", Fraction(1000)),
        memory_mib=node_demand(pod, "memory", Fraction(1, BYTES_PER_MIB)),
    )


def reference(pod: Json) -> PodRef:
    """Return which pod it is; a manifest that is not applied yet has no UID, and often no namespace."""
    metadata = section(pod, "metadata")
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str):
        raise BadRequest("metadata.name", name, "the pod's name")
    return PodRef(str(metadata.get("namespace") or "default"), name, str(metadata.get("uid") or ""))


def annotations(pod: Json) -> Mapping[str, str]:
    """Return the pod's annotations; Kubernetes allows only text there."""
    return _texts(pod, "annotations")


def labels(pod: Json) -> Mapping[str, str]:
    """Return the pod's labels; Kubernetes allows only text there."""
    return _texts(pod, "labels")


def _texts(pod: Json, key: str) -> Mapping[str, str]:
    found = section(section(pod, "metadata"), key, f"metadata.{key}")
    for name, value in found.items():
        if not isinstance(value, str):
            raise BadRequest(f"metadata.{key}[{name}]", value, "text", hint="put the value in quotes")
    return found


def optional(texts: Mapping[str, str], key: str, parse: Callable[[str, object], _T]) -> _T | None:
    """Return the parsed value of an annotation or label, or None if the pod does not have it."""
    text = texts.get(key)
    return None if text is None else parse(key, text)


def containers(pod: Json) -> Iterator[tuple[str, ContainerKind, Json]]:
    """Yield each container with its name and kind, init containers first, without ephemeral containers."""
    spec = section(pod, "spec")
    for key, kind in (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.MAIN)):
        for name, container in _named(spec, key):
            sidecar = kind is ContainerKind.INIT and container.get("restartPolicy") == "Always"
            yield name, ContainerKind.SIDECAR if sidecar else kind, container


def changeable_containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the containers of a pod that was read before, in order to change them."""
    spec: dict[str, Any] = pod.get("spec") or {}
    for key in ("initContainers", "containers"):
        yield from spec.get(key) or []


def _named(spec: Json, key: str) -> Iterator[tuple[str, Json]]:
    for number, container in enumerate(sequence(f"spec.{key}", spec.get(key))):
        if not _is_mapping(container) or not isinstance(container.get("name"), str):
            raise BadRequest(f"spec.{key}[{number}]", container, "a container with a name")
        yield container["name"], container


def ephemeral(pod: Json) -> Iterator[tuple[str, Json]]:
    """Yield ephemeral containers with their names."""
    return _named(section(pod, "spec"), "ephemeralContainers")


def refuse_elsewhere(pod: Json) -> None:
    """Refuse devices of the pod as a whole and of ephemeral containers, to which Kubernetes gives none."""
    spec = section(pod, "spec")
    places = [("spec.resources", spec)]
    places += [(f"ephemeralContainers[{name}].resources", each) for name, each in ephemeral(pod)]
    for where, place in places:
        for kind in ("limits", "requests"):
            for key, value in section(section(place, "resources", where), kind, f"{where}.{kind}").items():
                if is_device(key):
                    raise BadRequest(
                        f"{where}.{kind}[{key}]", value, "in a container's resources.limits, as all devices"
                    )


def first_main(pod: Json) -> str:
    """Return the name of the first main container, which gets what a dialect requests for the whole pod."""
    return next((name for name, kind, _ in containers(pod) if kind is ContainerKind.MAIN), "")


def is_device(key: str) -> bool:
    """Whether a resource is a device. Names of devices have a domain; class resources (`gpu-gold`) have none."""
    return ("/" in key and not key.startswith("kubernetes.io/")) or key.startswith("gpu-")


def device_limits(name: str, container: Json) -> Mapping[str, object]:
    """Return a container's devices: its limits, and requests where there is no limit.

    Devices cannot be over-committed, so limit and request must be equal, as the API server requires.
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
    found = {key: value for key, value in {**requests, **limits}.items() if is_device(key)}
    return _local_names(where, found) if names.REMOTE_VGPU in found else found


def _local_names(where: str, found: Mapping[str, object]) -> Mapping[str, object]:
    """Return the resources of a remote share under the names that they have on a node."""
    for remote, local in names.COUNTED_LOCALLY.items():
        if remote in found and local in found:
            raise BadRequest(f"{where}.limits[{local}]", found[local], f"left out where {remote} is set")
    return {names.COUNTED_LOCALLY.get(key, key): value for key, value in found.items()}


@dataclass(frozen=True, slots=True)
class PodFields:
    """All parts of a pod by which dialects recognize it, looked up once for all dialects."""

    devices: Mapping[str, str]
    """Every device resource of any container, with its field."""
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    commands: Mapping[str, Json]
    """Containers that have a command or arguments."""


def pod_fields(pod: Json) -> PodFields:
    """Return the fields by which dialects recognize a pod."""
    found: dict[str, str] = {}
    commands: dict[str, Json] = {}
    for name, _, container in containers(pod):
        for key in device_limits(name, container):
            found.setdefault(key, limit_field(name, key))
        if container.get("command") or container.get("args"):
            commands[name] = container
    return PodFields(found, annotations(pod), labels(pod), commands)


def limit_field(container: str, resource: str) -> str:
    """Return the name of a container's resource in errors."""
    return f"containers[{container}].resources.limits[{resource}]"


def node_demand(pod: Json, resource: str, scale: Fraction) -> int:
    """Return what the pod needs of CPU or memory by Kubernetes' formula, rounded up after scaling."""
    spec = section(pod, "spec")
    whole = section(section(spec, "resources", "spec.resources"), "requests", "spec.resources.requests")
    overhead = parse_quantity(f"spec.overhead[{resource}]", section(spec, "overhead").get(resource, 0))
    if resource in whole:  # a request of the pod as a whole replaces those of its containers
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
            case ContainerKind.MAIN:
                main += amount
            case ContainerKind.SIDECAR:
                sidecars += amount
                peak = max(peak, sidecars)
            case ContainerKind.INIT:
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
    """Return a part that must be a mapping; one that is absent is empty."""
    found = parent.get(key)
    if found is None:
        return {}
    if not _is_mapping(found):
        raise BadRequest(where or key, found, "a mapping")
    return found


def sequence(where: str, value: object) -> list[object]:
    """Return a part that must be a list; one that is absent is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(where, value, "a list")
    return cast("list[object]", value)


def _is_mapping(value: object) -> TypeGuard[Json]:
    # What JSON and YAML give is a dict, and asking an abstract class costs ten times as much.
    return type(value) is dict or isinstance(value, Mapping)
