"""A class's resource in a pod template, in the form that the API server stores.

The API server refuses a resource without a domain, such as `gpu-gold: 1`, in pods and in templates. It asks the
webhook before it validates: in a pod the normal form replaces the resource, in a template this module does. There
`gpu-gold: 1` becomes `nvidia.com/gpu: 1` and the annotation `milligpu.dev/class: gold`, which read as the same.

A manifest that is applied again is merged with the stored object, so both forms stand in it. If the resource was
taken out of the manifest, only its replacement does. The replacement is then removed, unless the manifest itself
has it: kubectl keeps a copy of the manifest in an annotation.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from milligpu.dialects import pod as pods
from milligpu.dialects.choose import read_pod
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.model import names
from milligpu.model.gpu_class import RESOURCE_PREFIX

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_Resources = Mapping[str, object]


def replace_class_resources(
    kind: str, found: pods.Json, before: pods.Json, settings: DialectSettings = DEFAULTS
) -> dict[str, Any]:
    """The object without class resources in its template; `before` is the object as it is stored, or empty.

    A bad request is refused.
    """
    result: dict[str, Any] = copy.deepcopy(dict(found))
    _remove_replaced(kind, result, before)
    request = read_pod(pod_of_template(kind, result), settings)
    template = _template(kind, result)
    counts = {name: _class_resources(resources) for name, resources in _limits(template)}
    if PATHS[kind] and any(counts.values()):
        _replace(template, str(request.gpu_class))
    return result


def _replace(template: dict[str, Any], name: str) -> None:
    metadata = cast("dict[str, Any]", template.setdefault("metadata", {}))
    metadata["annotations"] = {**(metadata.get("annotations") or {}), names.CLASS: name}
    for _, resources in _resources(template):
        for part in ("limits", "requests"):
            there: dict[str, Any] = resources.get(part) or {}
            for key in _class_resources(there):
                there[names.WHOLE_GPU] = there.pop(key)


def _remove_replaced(kind: str, found: dict[str, Any], before: pods.Json) -> None:
    """Remove what replaced class resources when the object was stored, where the manifest has changed since."""
    if not before:
        return
    template, stored = _template(kind, found), dict(_limits(_template(kind, before)))
    written, was_written = _applied(kind, found), _applied(kind, before)
    had, has = dict(_limits(was_written or {})), dict(_limits(written or {}))
    changed = False
    for name, resources in _resources(template):
        limits: dict[str, Any] = resources.get("limits") or {}
        asks = bool(_class_resources(limits))
        taken_out = (
            written is not None
            and bool(_class_resources(had.get(name, {})))
            and not _class_resources(has.get(name, {}))
        )
        same = names.WHOLE_GPU in limits and limits[names.WHOLE_GPU] == stored.get(name, {}).get(names.WHOLE_GPU)
        if same and (asks or taken_out) and names.WHOLE_GPU not in has.get(name, {}):
            for part in ("limits", "requests"):
                there: dict[str, Any] = resources.get(part) or {}
                there.pop(names.WHOLE_GPU, None)
        changed |= asks or taken_out
    if changed:
        _remove_class(template, _template(kind, before), written)


def _remove_class(template: dict[str, Any], stored: pods.Json, written: pods.Json | None) -> None:
    metadata: dict[str, Any] = template.get("metadata") or {}
    notes: dict[str, Any] = metadata.get("annotations") or {}
    by_user = written is not None and names.CLASS in pods.annotations(written)
    if not by_user and notes.get(names.CLASS) == pods.annotations(stored).get(names.CLASS):
        notes.pop(names.CLASS, None)


def _applied(kind: str, found: pods.Json) -> pods.Json | None:
    """The template of the manifest that kubectl applied last; None where another tool wrote the object."""
    text = pods.annotations(found).get(LAST_APPLIED)
    if text is None:
        return None
    try:
        return _template(kind, json.loads(text))
    except (ValueError, TypeError, AttributeError):
        return None


def _template(kind: str, found: pods.Json) -> dict[str, Any]:
    template: Any = found
    for key in PATHS[kind]:
        template = template.get(key) or {}
    return template


def _resources(template: pods.Json) -> Iterator[tuple[str, dict[str, Any]]]:
    spec: pods.Json = template.get("spec") or {}
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            yield str(container.get("name")), container.get("resources") or {}


def _limits(template: pods.Json) -> Iterator[tuple[str, _Resources]]:
    for name, resources in _resources(template):
        yield name, {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _class_resources(resources: _Resources) -> list[str]:
    return [key for key in resources if key.startswith(RESOURCE_PREFIX)]
