"""Recognizes pods that request no GPU by a short look, because in most clusters nearly all pods are such."""

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import msgspec

from milligpu.cluster.plain_pods import PlainPod
from milligpu.dialects import pod as pods
from milligpu.dialects.choose import KNOWN
from milligpu.dialects.registry import DialectRegistry
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRef
from milligpu.model.units import BYTES_PER_MIB
from milligpu.wire.kubernetes import KubePod

_NONE = msgspec.Raw(b"{}")
# A cluster has some hundred sets of requests; forgetting all of them costs reading them again.
_KNOWN_MAX = 4096


class _Container(msgspec.Struct):
    resources: msgspec.Raw = _NONE
    restartPolicy: str = ""


class _Spec(msgspec.Struct):
    nodeName: str = ""
    priority: int = 0
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    ephemeralContainers: list[_Container] | None = None
    resources: msgspec.Raw = _NONE
    overhead: msgspec.Raw = _NONE


_Key = tuple[bytes | str, ...]


class PlainReader:
    """Reads pods that cannot request a GPU; remembers what sets of resources mean, and nothing of pods."""

    def __init__(self, known: DialectRegistry = KNOWN) -> None:
        ours = re.escape(names.PREFIX)
        self._annotation = re.compile(f"{ours}|{known.annotation_pattern}")
        self._label = re.compile(f"{ours}|{known.label_pattern}")
        self._words = [word.encode() for word in known.command_words]
        self._decoder = msgspec.json.Decoder(_Spec)
        self._templates: dict[_Key, tuple[int, int] | None] = {}
        self._texts: dict[str, str] = {}

    def read(self, pod: KubePod) -> PlainPod | None:
        """Return a pod without a GPU; None if the pod may request one. Raises `msgspec.DecodeError`."""
        meta, text = pod.metadata, bytes(pod.spec)
        if (
            _any_match(self._annotation, meta.annotations)
            or _any_match(self._label, meta.labels)
            or any(word in text for word in self._words)
        ):
            return None
        spec = self._decoder.decode(text)
        amounts = self._cached_amounts(spec)
        if amounts is None:
            return None
        return PlainPod(
            PodRef(self._one(meta.namespace), meta.name, meta.uid),
            self._one(spec.nodeName),
            *amounts,
            spec.priority,
            ended=pod.ended,
            leaving=meta.deletionTimestamp is not None,
        )

    def _one(self, name: str) -> str:
        """Return one and the same text for a namespace or node that thousands of pods name."""
        if len(self._texts) > 4 * _KNOWN_MAX:
            self._texts.clear()
        return self._texts.setdefault(name, name)

    def _cached_amounts(self, spec: _Spec) -> tuple[int, int] | None:
        key = _key(spec)
        if key not in self._templates:
            if len(self._templates) >= _KNOWN_MAX:
                self._templates.clear()
            self._templates[key] = _read_amounts(spec)
        return self._templates[key]


def _any_match(pattern: re.Pattern[str], texts: Iterable[str] | None) -> bool:
    return any(map(pattern.match, texts or ()))


def _key(spec: _Spec) -> _Key:
    parts: list[bytes | str] = [bytes(spec.resources), bytes(spec.overhead)]
    for kind, containers in (("", spec.containers), ("i", spec.initContainers), ("e", spec.ephemeralContainers)):
        parts.append(kind)
        for each in containers or ():
            parts += (bytes(each.resources), each.restartPolicy)
    return tuple(parts)


def _read_amounts(spec: _Spec) -> tuple[int, int] | None:
    """Return the CPU and memory that the pod requests; None if it requests any device."""
    document: dict[str, Any] = {
        "resources": msgspec.json.decode(spec.resources),
        "overhead": msgspec.json.decode(spec.overhead),
    }
    for key in ("containers", "initContainers", "ephemeralContainers"):
        document[key] = [
            {"name": key, "restartPolicy": each.restartPolicy, "resources": msgspec.json.decode(each.resources)}
            for each in getattr(spec, key) or ()
        ]
    if any(map(pods.is_device, _resource_names(document))):
        return None
    pod = {"spec": document}
    try:
        cpu = pods.node_demand(pod, "cpu", Fraction(1000))
        return cpu, pods.node_demand(pod, "memory", Fraction(1, BYTES_PER_MIB))
    except BadRequest:
        return None


def _resource_names(spec: dict[str, Any]) -> Iterator[str]:
    for place in (spec, *spec["containers"], *spec["initContainers"], *spec["ephemeralContainers"]):
        resources: dict[str, Any] = place["resources"] or {}
        for kind in ("limits", "requests"):
            yield from resources.get(kind) or ()
