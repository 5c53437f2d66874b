"""The admission webhook: an AdmissionReview in, an AdmissionReview out, both as bytes.

A pod is brought into its normal form by a JSON Patch, or refused with a message that says how to write it. Objects
that make pods are only looked at: whoever applies a Deployment should not have to look for the refusal of its pods.
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from milligpu import dialects
from milligpu.dialects.normal import Form, hide_from_new, normalise
from milligpu.dialects.patch import patch
from milligpu.dialects.templates import PATHS, pod_of
from milligpu.model.errors import BadFormat, BadRequest

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


class Webhook:
    """Answers reviews. `form` is asked each time: cards come and go."""

    def __init__(self, form: Callable[[], Form]) -> None:
        self._form = form

    def review(self, body: bytes) -> bytes:
        """Answer one review; a body that is none is a BadFormat."""
        try:
            request = _decoder.decode(body).request
            found = _objects.decode(request.object)
        except msgspec.MsgspecError as error:
            raise BadFormat("AdmissionReview", str(error)) from None
        try:
            answer = self._answer(request, found)
        except BadRequest as error:
            answer = _denied(error)
        response = {"uid": request.uid, **answer}
        return msgspec.json.encode({"apiVersion": _API, "kind": "AdmissionReview", "response": response})

    def _answer(self, request: _Request, found: dict[str, Any]) -> dict[str, Any]:
        form = self._form()
        if request.subResource == EPHEMERAL:
            known: dict[str, Any] = msgspec.json.decode(request.oldObject, type=dict[str, Any] | None) or {}
            return _patched(found, hide_from_new(found, known))
        if request.kind.kind == "Pod":
            return _patched(found, normalise(_placed(request.namespace, found), form))
        if request.kind.kind in PATHS:
            dialects.read(pod_of(request.kind.kind, found), form.settings)
        return {"allowed": True}


def _placed(namespace: str, found: dict[str, Any]) -> dict[str, Any]:
    """A new pod may have no name yet; a controller's has a prefix, and whoever reads it needs some name."""
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and not ("name" in metadata or "generateName" in metadata):
        raise BadRequest("metadata.name", None, f"the pod's name in {namespace or 'its namespace'}")
    return found


def _patched(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    operations = list(patch(old, new))
    if not operations:
        return {"allowed": True}
    text = base64.b64encode(msgspec.json.encode(operations)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


def _denied(error: BadRequest) -> dict[str, Any]:
    hint = f"; {error.hint}" if error.hint else ""
    status = {"code": _INVALID, "reason": "Invalid", "message": f"{error.message}{hint}"}
    return {"allowed": False, "status": status}
