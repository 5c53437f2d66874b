"""Pods that a node's agent asks the scheduler to evict, as a node annotation: `milligpu.dev/evict`.

`{"v":1,"pods":[{"namespace":"a","name":"b","uid":"…","reason":"UnknownGPU"}]}`. The agent names pods whose
container it has refused for long. It has no right to evict: the scheduler does, and only pods of that node.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from milligpu.model.errors import BadFormat
from milligpu.model.request import PodRef
from milligpu.wire.documents import Document, DocumentFormat, DocumentPart, encode

EVICTIONS = DocumentFormat("eviction requests")
# A kubelet runs 110 pods by default, and some admins allow 250. A list beyond that is no agent's.
PODS_MAX = 250
# Names become parts of a path, so nothing else may be in them.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class _Pod(DocumentPart, frozen=True):
    namespace: str
    name: str
    uid: str
    reason: str


class _Evictions(Document, frozen=True):
    pods: tuple[_Pod, ...]


@dataclass(frozen=True, slots=True)
class EvictionRequest:
    """A pod to evict, and why."""

    pod: PodRef
    reason: str


def encode_evictions(requests: Iterable[EvictionRequest]) -> str:
    """Write the annotation's value; pods beyond `PODS_MAX` wait until others are gone."""
    pods = tuple(_Pod(each.pod.namespace, each.pod.name, each.pod.uid, each.reason) for each in requests)
    return encode(_Evictions(EVICTIONS.version, pods[:PODS_MAX]))


def decode_evictions(text: str) -> tuple[EvictionRequest, ...]:
    """Read the annotation's value."""
    pods = EVICTIONS.decode(text, _Evictions).pods
    if len(pods) > PODS_MAX:
        raise BadFormat(EVICTIONS.name, f"{len(pods)} pods, must be at most {PODS_MAX}")
    for each in pods:
        if not (_NAME.fullmatch(each.namespace) and _NAME.fullmatch(each.name) and each.uid):
            raise BadFormat(EVICTIONS.name, f"no pod has such a name: {each.namespace!r}, {each.name!r}")
    return tuple(EvictionRequest(PodRef(each.namespace, each.name, each.uid), each.reason) for each in pods)
