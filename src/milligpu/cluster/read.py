"""Kubernetes' objects as the books need them: read once, and again only when what matters has changed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Any

import msgspec

from milligpu.kube import objects
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Node
from milligpu.model.grant import Grant
from milligpu.model.request import PodRef, PodRequest
from milligpu.model.units import parse_quantity
from milligpu.scheduler.eligible import UNSCHEDULABLE, Affinity, Constraints, Place, Toleration
from milligpu.wire.grant import decode_grant
from milligpu.wire.inventory import decode_inventory

_NOBODY = PodRef("", "")
# A cluster has a few hundred shapes; numbers are never used again, so that forgetting all does no harm.
_SHAPES_MAX = 4096
# Pods of one template differ in the name of the volume that admission gives to each for its account's token.
_TOKEN_VOLUME = re.compile(rb'"kube-api-access-[a-z0-9]{5}"')
_TEMPLATES_MAX = 1024
_ENDED = frozenset({"Succeeded", "Failed"})

Reader = Callable[[Mapping[str, Any]], PodRequest]


class _Spec(msgspec.Struct):
    nodeName: str = ""
    schedulerName: str = "default-scheduler"
    schedulingGates: list[msgspec.Raw] | None = None
    priority: int = 0
    nodeSelector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


_spec_decoder = msgspec.json.Decoder(_Spec)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks for, which stays the same from its creation to its end."""

    pod: PodRef
    request: PodRequest | None
    """None when its author made a mistake."""
    mistake: str
    constraints: Constraints
    scheduler: str
    priority: int
    shape: int
    """The same number for wishes that fit in the same places: what fails for one fails for all."""

    @property
    def wants_gpu(self) -> bool:
        """Whether it is ours to place; a mistaken one is ours to refuse."""
        return self.request is None or self.request.wants_gpu


@dataclass(frozen=True, slots=True)
class PodSight:
    """A pod at one moment."""

    wish: Wish
    node: str
    grant: Grant | None
    ended: bool
    gated: bool
    leaving: bool
    nominated: str
    resize: str = ""
    """The annotation by which a running pod asks for another share."""

    @property
    def uid(self) -> str:
        """Who it is."""
        return self.wish.pod.uid


class PodReader:
    """Reads pods; remembers the wishes of those that wait, because every event repeats them."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._known: dict[str, tuple[int, object, object, Wish]] = {}
        self._grants: dict[str, tuple[str, Grant | None]] = {}
        self._templates: dict[object, Wish] = {}
        self._shapes: dict[object, int] = {}
        self._numbers = count()

    def sight(self, pod: objects.Pod) -> PodSight:
        """The pod as it is now. Raises `msgspec.DecodeError` where Kubernetes would not have let it be."""
        spec = _spec_decoder.decode(pod.spec)
        meta, status = pod.metadata, pod.status
        return PodSight(
            wish=self._wish(pod, spec),
            node=spec.nodeName,
            grant=self._grant(meta) if spec.nodeName else None,
            ended=status.phase in _ENDED,
            gated=bool(spec.schedulingGates),
            leaving=meta.deletionTimestamp is not None,
            nominated=status.nominatedNodeName,
            resize=(meta.annotations or {}).get(names.RESIZE, ""),
        )

    def _wish(self, pod: objects.Pod, spec: _Spec) -> Wish:
        meta = pod.metadata
        known = self._known.get(meta.uid)
        if known is not None and spec.nodeName:
            return known[3]  # only the grant and the node are new
        seen = (hash(bytes(pod.spec)), meta.annotations, meta.labels)
        if known is not None and known[:3] == seen:
            return known[3]
        wish = self._first_look(pod, spec)
        if known is not None and known[3] == wish:
            wish = known[3]  # written differently, or changed in what does not concern us
        self._known[meta.uid] = (*seen, wish)
        return wish

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._known.pop(uid, None)
        self._grants.pop(uid, None)

    def _grant(self, meta: objects.Meta) -> Grant | None:
        """What the annotation says; it seldom changes, and every event repeats it."""
        text = (meta.annotations or {}).get(names.GRANT)
        if text is None:
            return None
        known = self._grants.get(meta.uid)
        if known is None or known[0] != text:
            known = self._grants[meta.uid] = (text, grant_of(meta))
        return known[1]

    def _first_look(self, pod: objects.Pod, spec: _Spec) -> Wish:
        """A pod of its own, or another one of a template that was read before: only whose it is differs."""
        meta = pod.metadata
        if not meta.name:
            return self._read_wish(pod, spec)  # to be refused
        text = _TOKEN_VOLUME.sub(b'""', bytes(pod.spec))
        key = (text, _frozen(meta.annotations), _frozen(meta.labels))
        like = self._templates.get(key)
        if like is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            like = self._templates[key] = self._read_wish(pod, spec)
        ref = PodRef(meta.namespace, meta.name, meta.uid)
        if like.pod == ref:
            return like
        request = None if like.request is None else replace(like.request, pod=ref)
        return replace(like, pod=ref, request=request)

    def _read_wish(self, pod: objects.Pod, spec: _Spec) -> Wish:
        meta = pod.metadata
        request, mistake = None, ""
        try:
            request = self._read(pod.as_dict())
        except BadRequest as error:
            mistake = error.message if not error.hint else f"{error.message} ({error.hint})"
        node_affinity = None if spec.affinity is None else spec.affinity.nodeAffinity
        required = None if node_affinity is None else node_affinity.requiredDuringSchedulingIgnoredDuringExecution
        constraints = Constraints(
            tuple(sorted((spec.nodeSelector or {}).items())),
            None if required is None else required.nodeSelectorTerms or (),
            spec.tolerations or (),
        )
        return Wish(
            pod=PodRef(meta.namespace, meta.name, meta.uid),
            request=request,
            mistake=mistake,
            constraints=constraints,
            scheduler=spec.schedulerName,
            priority=spec.priority,
            shape=self._shape(request, mistake, constraints),
        )

    def _shape(self, request: PodRequest | None, mistake: str, constraints: Constraints) -> int:
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes = {}
        # Whose it is makes no difference, unless its lot among equals does; then it fails where all fail.
        key = mistake if request is None else replace(request, pod=_NOBODY)
        return self._shapes.setdefault((key, constraints), next(self._numbers))


def _frozen(texts: Mapping[str, str] | None) -> frozenset[tuple[str, str]]:
    return frozenset((texts or {}).items())


def grant_of(meta: objects.Meta) -> Grant | None:
    """A bound pod's grant; None where there is none that anybody would honour."""
    text = (meta.annotations or {}).get(names.GRANT)
    if text is None:
        return None
    try:
        grant = decode_grant(text)
    except BadFormat:
        return None  # the agent will not honour it either
    return grant if grant.uid == meta.uid else None


@dataclass(frozen=True, slots=True)
class NodeSight:
    """A node: its cards and room, and what pods' conditions look at."""

    node: Node
    place: Place
    problem: str = ""
    """Why its inventory does not read."""


class NodeReader:
    """Reads nodes; the kubelet's frequent reports change nothing that matters here."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], NodeSight]] = {}

    def sight(self, node: objects.Node) -> NodeSight | None:
        """The node, or None when nothing changed since it was last looked at."""
        meta, allocatable = node.metadata, node.status.allocatable or {}
        taints = tuple(node.spec.taints or ())
        if node.spec.unschedulable:
            taints = (*taints, UNSCHEDULABLE)
        text = (meta.annotations or {}).get(names.INVENTORY)
        cpu, memory = allocatable.get("cpu", "0"), allocatable.get("memory", "0")
        seen = (text, meta.labels, taints, cpu, memory)
        known = self._known.get(meta.name)
        if known is not None and known[0] == seen:
            return None
        found = _node(meta, text, taints, cpu, memory)
        self._known[meta.name] = (seen, found)
        return found

    def known(self) -> set[str]:
        """The names of all nodes looked at."""
        return set(self._known)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._known.pop(name, None)


def _node(
    meta: objects.Meta, text: str | None, taints: tuple[objects.Taint, ...], cpu: str, memory: str
) -> NodeSight:
    labels = meta.labels or {}
    place, problem = Place(meta.name, labels, taints), ""
    try:
        gpus = decode_inventory(text) if text is not None else ()
    except BadFormat as error:
        gpus, problem = (), error.message
    node = Node(
        meta.name,
        gpus,
        int(parse_quantity("cpu", cpu) * 1000),
        int(parse_quantity("memory", memory) * Fraction(1, 1024 * 1024)),
        labels,
    )
    return NodeSight(node, place, problem)
