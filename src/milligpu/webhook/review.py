"""The admission webhook: an AdmissionReview in, an AdmissionReview out, both as bytes.

A JSON Patch brings a pod into its normal form, or the pod is refused with a message that says how to write it.
Objects that create pods, such as Deployments, are checked, so that `kubectl apply` shows mistakes. They are changed
only where the API server would refuse them: a class's resource (`gpu-gold`) is replaced. Classes, queues, layouts
and calendars are checked, too. A pod of a queue gets the queue's scheduling gate, and with its template the name of
who created it.
"""

import base64
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from milligpu.dialects.bitfusion import DIALECT as BITFUSION
from milligpu.dialects.choose import read_pod
from milligpu.dialects.class_templates import replace_class_resources
from milligpu.dialects.normal import NormalForm, hide_gpus_from_debug_containers, normalize
from milligpu.dialects.patch import json_patch
from milligpu.dialects.pod import annotations, section
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.layouts.spec import parse_calendar, parse_layout
from milligpu.model import names
from milligpu.model.attach import parse_attach
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses, parse_class
from milligpu.model.gpu_queue import NO_QUEUES, GpuQueues
from milligpu.webhook.queue_entry import check_template, enqueue, sign_template
from milligpu.wire.gpu_queue import queue_of_object
from milligpu.wire.kubernetes import KubeGpuQueue

# The API server refuses objects above 3 MiB, and a review of an update holds two.
BODY_MAX = 8 * 1024 * 1024
_INVALID = 422
EPHEMERAL = "ephemeralcontainers"
_API = "admission.k8s.io/v1"


class _Kind(msgspec.Struct):
    kind: str


class _User(msgspec.Struct):
    username: str = ""


class _Request(msgspec.Struct):
    uid: str
    kind: _Kind
    namespace: str = ""
    subResource: str = ""
    operation: str = ""
    userInfo: _User = msgspec.field(default_factory=_User)
    object: msgspec.Raw = msgspec.Raw(b"null")
    oldObject: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct):
    request: _Request


_decoder = msgspec.json.Decoder(_Review)
_objects = msgspec.json.Decoder(dict[str, Any])


class UnknownName(BadRequest):
    """The review is about a class or queue that is not known, or not yet."""


class PodReviewer:
    """Answers reviews; `form`, `classes` and `queues` are called for each, because the cluster changes."""

    def __init__(
        self,
        form: Callable[[], NormalForm],
        classes: Callable[[], GpuClasses] = lambda: NO_CLASSES,
        queues: Callable[[], GpuQueues] = lambda: NO_QUEUES,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._form = form
        self._now = now
        self._classes = classes
        self._queues = queues

    def review(self, body: bytes, *, final: bool = True, bitfusion: str | None = None) -> bytes:
        """Answer one review. Raises `BadFormat` for a body that is no AdmissionReview.

        `bitfusion` is what the namespace's label says about `bitfusion run`; None if it has none. Raises
        `UnknownName` unless the answer is `final`: a class or queue may be newer than what is known.
        """
        try:
            request = _decoder.decode(body).request
            found = _objects.decode(request.object)
        except msgspec.MsgspecError as error:
            raise BadFormat("AdmissionReview", str(error)) from None
        try:
            answer = self._answer(request, found, bitfusion)
        except UnknownName as error:
            if not final:
                raise
            answer = _denied(error)
        except BadRequest as error:
            answer = _denied(error)
        response = {"uid": request.uid, **answer}
        return msgspec.json.encode({"apiVersion": _API, "kind": "AdmissionReview", "response": response})

    def _answer(self, request: _Request, found: dict[str, Any], bitfusion: str | None) -> dict[str, Any]:
        form, kind = self._form(), request.kind.kind
        before: dict[str, Any] = msgspec.json.decode(request.oldObject, type=dict[str, Any] | None) or {}
        if request.subResource == EPHEMERAL:
            return _patched(found, hide_gpus_from_debug_containers(found, before))
        if kind == "Pod":
            asked = _attached(_placed(request.namespace, found), form, bitfusion)
            result = normalize(asked, form)
            self._check_class(result)
            if names.DIALECT in annotations(result):
                with _not_known_yet():
                    enqueue(result, request.namespace, request.userInfo.username, self._queues())
            return _patched(found, result)
        if kind in PATHS:
            result = replace_class_resources(kind, found, before, form.settings)
            pod = pod_of_template(kind, result)
            self._check_class(pod)
            self._check_queue(request, kind, pod, result, before)
            return _patched(found, result)
        if kind == "GpuQueue":
            return self._gpu_queue(request)
        if kind == "GpuLayout":
            parse_layout(found)
        if kind == "GpuCalendar":
            parse_calendar(found, self._now())
        return self._gpu_class(found) if kind == "GpuClass" else {"allowed": True}

    def _check_queue(
        self, request: _Request, kind: str, pod: dict[str, Any], result: dict[str, Any], before: dict[str, Any]
    ) -> None:
        queues = self._queues()
        with _not_known_yet():
            check_template(pod, request.namespace, queues)
        if len(queues):
            sign_template(kind, result, before, request.userInfo.username)

    def _gpu_queue(self, request: _Request) -> dict[str, Any]:
        try:
            new = queue_of_object(msgspec.json.decode(request.object, type=KubeGpuQueue))
        except BadFormat as error:
            raise BadRequest("spec", None, error.message) from None
        with _not_known_yet():
            self._queues().with_queue(new)
        return {"allowed": True}

    def _check_class(self, pod: dict[str, Any]) -> None:
        name = annotations(pod).get(names.CLASS)
        if name is not None:
            with _not_known_yet():
                self._classes().check(names.CLASS, name)

    def _gpu_class(self, found: dict[str, Any]) -> dict[str, Any]:
        metadata, spec = section(found, "metadata"), section(found, "spec")
        new = parse_class(metadata.get("name"), spec.get("requirements"), spec.get("fallback"))
        classes = self._classes()
        classes.refuse_cycle(new)
        if new.fallback and new.fallback not in classes.names:
            return {"allowed": True, "warnings": [f"spec.fallback: class {new.fallback} does not exist yet"]}
        return {"allowed": True}


@contextmanager
def _not_known_yet() -> Generator[None]:
    """Mark a refusal that may be due to a watch that is late."""
    try:
        yield
    except BadRequest as error:
        raise UnknownName(error.field, error.value, error.want, hint=error.hint) from None


def _placed(namespace: str, found: dict[str, Any]) -> dict[str, Any]:
    """Require a name or a prefix of one, which the dialects need; a controller's new pod has only a prefix."""
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and not ("name" in metadata or "generateName" in metadata):
        raise BadRequest("metadata.name", None, f"the pod's name in {namespace or 'its namespace'}")
    return found


def _attached(found: dict[str, Any], form: NormalForm, bitfusion: str | None) -> dict[str, Any]:
    """Return a pod in Bitfusion's dialect with the place that its namespace's label says; others as they are."""
    notes = annotations(found)
    if bitfusion is None or names.ATTACH in notes or names.DIALECT in notes:
        return found
    if read_pod(found, form.settings, form.known).dialect != BITFUSION.name:
        return found
    attach = parse_attach(f"namespace label {names.BITFUSION}", bitfusion)
    metadata = {**section(found, "metadata"), "annotations": {**notes, names.ATTACH: str(attach)}}
    return {**found, "metadata": metadata}


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
