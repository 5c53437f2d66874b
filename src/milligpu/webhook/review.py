"""The admission webhook: an AdmissionReview in, an AdmissionReview out, both as bytes.

A JSON Patch brings a pod into its normal form, or the pod is refused with a message that says how to write it.
Objects that create pods, such as Deployments, are checked, so that `kubectl apply` shows mistakes. They are changed
only where the API server would refuse them: a class's resource (`gpu-gold`) is replaced. Classes, layouts and
calendars are checked, too.
"""

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from milligpu.dialects.class_templates import replace_class_resources
from milligpu.dialects.normal import NormalForm, hide_gpus_from_debug_containers, normalize
from milligpu.dialects.patch import json_patch
from milligpu.dialects.pod import annotations, section
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.layouts.spec import parse_calendar, parse_layout
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses, parse_class

# The API server refuses objects above 3 MiB, and a review of an update holds two.
BODY_MAX = 8 * 1024 * 1024
_INVALID = 422
EPHEMERAL = "ephemeralcontainers"
_API = "admission.k8s.io/v1"


class _Kind(msgspec.Struct):
    kind: str


class _Request(msgspec.Struct):
    uid: str
    kind: _Kind
    namespace: str = ""
    subResource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    oldObject: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct):
    request: _Request


_decoder = msgspec.json.Decoder(_Review)
_objects = msgspec.json.Decoder(dict[str, Any])


class UnknownClass(BadRequest):
    """The review is about a class that is not known, or not yet."""


class PodReviewer:
    """Answers reviews; `form` and `classes` are called for each, because the cluster changes."""

    def __init__(
        self,
        form: Callable[[], NormalForm],
        classes: Callable[[], GpuClasses] = lambda: NO_CLASSES,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._form = form
        self._now = now
        self._classes = classes

    def review(self, body: bytes, *, final: bool = True) -> bytes:
        """Answer one review. Raises `BadFormat` for a body that is no AdmissionReview.

        Raises `UnknownClass` unless the answer is `final`: a class may be newer than what is known of the cluster.
        """
        try:
            request = _decoder.decode(body).request
            found = _objects.decode(request.object)
        except msgspec.MsgspecError as error:
            raise BadFormat("AdmissionReview", str(error)) from None
        try:
            answer = self._answer(request, found)
        except UnknownClass as error:
            if not final:
                raise
            answer = _denied(error)
        except BadRequest as error:
            answer = _denied(error)
        response = {"uid": request.uid, **answer}
        return msgspec.json.encode({"apiVersion": _API, "kind": "AdmissionReview", "response": response})

    def _answer(self, request: _Request, found: dict[str, Any]) -> dict[str, Any]:
        form, kind = self._form(), request.kind.kind
        before: dict[str, Any] = msgspec.json.decode(request.oldObject, type=dict[str, Any] | None) or {}
        if request.subResource == EPHEMERAL:
            return _patched(found, hide_gpus_from_debug_containers(found, before))
        if kind == "Pod":
            result = normalize(_placed(request.namespace, found), form)
            self._check_class(result)
            return _patched(found, result)
        if kind in PATHS:
            result = replace_class_resources(kind, found, before, form.settings)
            self._check_class(pod_of_template(kind, result))
            return _patched(found, result)
        if kind == "GpuLayout":
            parse_layout(found)
        if kind == "GpuCalendar":
            parse_calendar(found, self._now())
        return self._gpu_class(found) if kind == "GpuClass" else {"allowed": True}

    def _check_class(self, pod: dict[str, Any]) -> None:
        name = annotations(pod).get(names.CLASS)
        if name is not None:
            try:
                self._classes().check(names.CLASS, name)
            except BadRequest as error:
                raise UnknownClass(error.field, error.value, error.want, hint=error.hint) from None

    def _gpu_class(self, found: dict[str, Any]) -> dict[str, Any]:
        metadata, spec = section(found, "metadata"), section(found, "spec")
        new = parse_class(metadata.get("name"), spec.get("requirements"), spec.get("fallback"))
        classes = self._classes()
        classes.refuse_cycle(new)
        if new.fallback and new.fallback not in classes.names:
            return {"allowed": True, "warnings": [f"spec.fallback: class {new.fallback} does not exist yet"]}
        return {"allowed": True}


def _placed(namespace: str, found: dict[str, Any]) -> dict[str, Any]:
    """Require a name or a prefix of one, which the dialects need; a controller's new pod has only a prefix."""
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and not ("name" in metadata or "generateName" in metadata):
        raise BadRequest("metadata.name", None, f"the pod's name in {namespace or 'its namespace'}")
    return found


def _patched(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    operations = list(json_patch(old, new))
    if not operations:
        return {"allowed": True}
    text = base64.b64encode(msgspec.json.encode(operations)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


def _denied(error: BadRequest) -> dict[str, Any]:
    hint = f"; {error.hint}" if error.hint else ""
    status = {"code": _INVALID, "reason": "Invalid", "message": f"{error.message}{hint}"}
    return {"allowed": False, "status": status}
