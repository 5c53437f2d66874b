"""Kubernetes' objects as the cluster state needs them; each is read again only when what matters changed."""

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import inf
from typing import Any

import msgspec

from milligpu import dialects
from milligpu.cluster.node_conditions import (
    describe_absence,
    is_agent_ready,
    read_conditions,
    suspended_until,
    wanted_conditions,
)
from milligpu.cluster.node_constraints import (
    UNSCHEDULABLE,
    Affinity,
    NodeConstraints,
    NodeFacts,
    Toleration,
    without_suspension,
)
from milligpu.cluster.observed import ObservedNode, ObservedPod, SchedulingSpec, UnreadableGrant
from milligpu.cluster.preferences import NO_PREFERENCES, read_preferences
from milligpu.cluster.servers import read_server
from milligpu.cluster.state import ClusterState
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import GpuState, Node
from milligpu.model.gpu_class import GpuClasses, read_class
from milligpu.model.grant import Grant
from milligpu.model.request import PodRef, PodRequest
from milligpu.model.timestamps import parse_timestamp
from milligpu.model.units import BYTES_PER_MIB, parse_quantity
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.wire.documents import named_gpus
from milligpu.wire.driver import gpus_of_node
from milligpu.wire.grant import decode_grant
from milligpu.wire.kubernetes import (
    ENDED_PHASES,
    KubeGpuClass,
    KubeGpuServer,
    KubeNode,
    KubePod,
    ObjectMeta,
    PodStatus,
    Taint,
)

_NOBODY = PodRef("", "")
# A cluster has a few hundred shapes. Numbers are never reused, so forgetting all of them does no harm.
_SHAPES_MAX = 4096
# Pods of one template differ in the name of the volume for the service account's token.
_TOKEN_VOLUME = re.compile(rb'"kube-api-access-[a-z0-9]{5}"')
_TEMPLATES_MAX = 1024
_BOUND = "bound"
# kube-scheduler writes "Insufficient nvidia.com/vgpu", and what filter answered.
_ABOUT_GPUS = ("GPU", "nvidia.com/", "milligpu")
# Conditions of an evicted pod: by the API server, the kubelet, or a scheduler that preempts.
_EVICTED = "DisruptionTarget"

Reader = Callable[[Mapping[str, Any]], PodRequest]


class _Gate(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    nodeName: str = ""
    schedulerName: str = "default-scheduler"
    schedulingGates: list[_Gate] | None = None
    activeDeadlineSeconds: int | None = None
    preemptionPolicy: str = ""
    priority: int = 0
    nodeSelector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None


_spec_decoder = msgspec.json.Decoder(_Spec)


class PodReader:
    """Reads pods; remembers their specs, because every event of a watch repeats them."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._known: dict[str, tuple[object, SchedulingSpec]] = {}
        """The spec of each pod, and what it was read from."""
        self._grants: dict[str, tuple[str, Grant | UnreadableGrant | None]] = {}
        self._templates: dict[object, SchedulingSpec] = {}
        self._shapes: dict[object, int] = {}
        self._numbers = count()

    def read(self, pod: KubePod) -> ObservedPod:
        """Read a pod. Raises `msgspec.DecodeError` for what the API server would not accept."""
        spec = _spec_decoder.decode(pod.spec)
        meta, status = pod.metadata, pod.status
        grant = self._grant(meta) if spec.nodeName else None
        scheduling = self._spec(pod, spec)
        timed = scheduling.takes_turns or scheduling.time_limit_s < inf
        started = parse_timestamp(status.startTime) if timed and status.startTime else inf
        return ObservedPod(
            spec=scheduling,
            node=_place(spec.nodeName, scheduling, grant),
            grant=grant if isinstance(grant, Grant) else None,
            unreadable=grant if isinstance(grant, UnreadableGrant) else None,
            ended=status.phase in ENDED_PHASES,
            gated=bool(spec.schedulingGates),
            leaving=meta.deletionTimestamp is not None,
            nominated=status.nominatedNodeName,
            other_reason=_other_reason(status),
            given_up=_unschedulable(status) is not None,
            resize=(meta.annotations or {}).get(names.RESIZE, ""),
            service=(meta.annotations or {}).get(names.SERVICE, ""),
            queued=[each.name for each in spec.schedulingGates or ()] == [names.QUEUE],
            created=parse_timestamp(meta.creationTimestamp) if scheduling.takes_turns else 0.0,
            started=started,
            ends=started + scheduling.time_limit_s,
            succeeded=_succeeded(pod) if scheduling.group is not None else None,
        )

    def _spec(self, pod: KubePod, spec: _Spec) -> SchedulingSpec:
        meta = pod.metadata
        known = self._known.get(meta.uid)
        # Of a bound pod only the grant and the node change.
        seen = _BOUND if spec.nodeName else (hash(bytes(pod.spec)), meta.annotations, meta.labels)
        if known is not None and known[0] == seen:
            return known[1]
        scheduling = known[1] if known is not None and spec.nodeName else self._read_first(pod, spec)
        if known is not None and known[1] == scheduling:
            scheduling = known[1]  # the change does not matter here
        self._known[meta.uid] = (seen, scheduling)
        return scheduling

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._grants.pop(uid, None)

    def forget_unknown(self, uid: str, state: ClusterState) -> None:
        """Forget a pod that the state does not have: the watch may have shown meanwhile that it is gone."""
        if state.entry(uid) is None:
            self.forget(uid)

    def keep(self, listed: Set[str], known: Callable[[str], bool]) -> None:
        """Forget all pods that are neither in the list nor otherwise known, such as ended ones that are gone."""
        for uid in [uid for uid in (*self._known, *self._grants) if uid not in listed and not known(uid)]:
            self.forget(uid)

    def _grant(self, meta: ObjectMeta) -> Grant | UnreadableGrant | None:
        """Decode the grant, unless it is the one that the last event had."""
        text = (meta.annotations or {}).get(names.GRANT)
        if text is None:
            return None
        known = self._grants.get(meta.uid)
        if known is None or known[0] != text:
            known = self._grants[meta.uid] = (text, grant_of_pod(meta))
        return known[1]

    def _read_first(self, pod: KubePod, spec: _Spec) -> SchedulingSpec:
        """Read a pod's spec, or copy that of an earlier pod of the same template."""
        meta = pod.metadata
        if not meta.name:
            return self._read_spec(pod, spec)  # it will be refused
        text = _without_node(_TOKEN_VOLUME.sub(b'""', bytes(pod.spec)), spec.nodeName)
        key = (text, _frozen(meta.annotations), _frozen(meta.labels))
        like = self._templates.get(key)
        if like is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            like = self._templates[key] = self._read_spec(pod, spec)
        ref = PodRef(meta.namespace, meta.name, meta.uid)
        if like.pod == ref:
            return like
        request = None if like.request is None else replace(like.request, pod=ref)
        return replace(like, pod=ref, request=request)

    def _read_spec(self, pod: KubePod, spec: _Spec) -> SchedulingSpec:
        meta = pod.metadata
        request, mistake = None, ""
        try:
            request = self._read(pod.as_dict())
        except BadRequest as error:
            mistake = error.message if not error.hint else f"{error.message} ({error.hint})"
        node_affinity = None if spec.affinity is None else spec.affinity.nodeAffinity
        required = None if node_affinity is None else node_affinity.requiredDuringSchedulingIgnoredDuringExecution
        constraints = NodeConstraints(
            tuple(sorted((spec.nodeSelector or {}).items())),
            None if required is None else required.nodeSelectorTerms or (),
            spec.tolerations or (),
        )
        preferences = read_preferences(pod.spec)
        if request is not None and request.remote:
            constraints, preferences = NodeConstraints(remote=True), NO_PREFERENCES
        return SchedulingSpec(
            pod=PodRef(meta.namespace, meta.name, meta.uid),
            request=request,
            mistake=mistake,
            constraints=constraints,
            scheduler=spec.schedulerName,
            priority=spec.priority,
            shape=self._shape(request, mistake, constraints),
            preferences=preferences,
            queue=(meta.labels or {}).get(names.QUEUE, ""),
            user=(meta.annotations or {}).get(names.USER, ""),
            preempts=spec.preemptionPolicy != "Never",
            time_limit_s=inf if spec.activeDeadlineSeconds is None else float(spec.activeDeadlineSeconds),
        )

    def _shape(self, request: PodRequest | None, mistake: str, constraints: NodeConstraints) -> int:
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes = {}
        # The pod's name matters only where affinity counts pods; if one such pod fits nowhere, none does.
        key = mistake if request is None else replace(request, pod=_NOBODY)
        return self._shapes.setdefault((key, constraints), next(self._numbers))


def _place(node: str, spec: SchedulingSpec, grant: Grant | UnreadableGrant | None) -> str:
    """Return where a bound pod's GPUs are: on its node, or on the GPU server that its grant names."""
    return grant.node if spec.is_remote and isinstance(grant, Grant) else node


def _other_reason(status: PodStatus) -> bool:
    """Whether kube-scheduler's message names neither a GPU resource nor our own answer."""
    message = _unschedulable(status)
    return message is not None and not any(word in message for word in _ABOUT_GPUS)


def _unschedulable(status: PodStatus) -> str | None:
    """Return kube-scheduler's message about a pod that it could not place."""
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return condition.message
    return None


def _succeeded(pod: KubePod) -> float | None:
    """Return when the last container ended, or when the pod was created if that is unknown."""
    if pod.status.phase != "Succeeded":
        return None
    states = [each.state or {} for each in pod.status.containerStatuses or ()]
    ends = [
        ended["finishedAt"] for state in states if (ended := state.get("terminated")) and ended.get("finishedAt")
    ]
    return parse_timestamp(max(ends, default=pod.metadata.creationTimestamp))


def _frozen(texts: Mapping[str, str] | None) -> frozenset[tuple[str, str]]:
    """Make a part of a template's key, without the grant, which is another one for every pod."""
    return frozenset(each for each in (texts or {}).items() if each[0] != names.GRANT)


def _without_node(spec: bytes, node: str) -> bytes:
    """Cut the node out of the spec of a bound pod: pods of one template are on many nodes.

    If the same words stand in another place, too, one of both remains, and the texts of two nodes still differ.
    """
    if not node:
        return spec
    before, _, after = spec.rpartition(b'"nodeName":"' + node.encode() + b'"')
    return before + after


def grant_of_pod(meta: ObjectMeta) -> Grant | UnreadableGrant | None:
    """Return a bound pod's grant; None if it has none, or one that was written for another pod."""
    text = (meta.annotations or {}).get(names.GRANT)
    if text is None:
        return None
    try:
        grant = decode_grant(text)
    except BadFormat as error:
        return UnreadableGrant(named_gpus(text), error.message)
    return grant if grant.uid == meta.uid else None


def describe_end(pod: KubePod) -> str:
    """Say why a pod gives its share back."""
    evicted = [each for each in pod.status.conditions or () if each.type == _EVICTED and each.status == "True"]
    if evicted:
        return f"evicted ({evicted[0].reason})"
    return pod.status.phase.lower() if pod.status.phase in ENDED_PHASES else "deleted"


class NodeReader:
    """Reads nodes, and skips the kubelet's frequent status updates."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], ObservedNode]] = {}

    def read(self, node: KubeNode) -> ObservedNode | None:
        """Read a node; None if nothing that matters changed since it was last read."""
        meta, allocatable = node.metadata, node.status.allocatable or {}
        taints = tuple(node.spec.taints or ())
        if node.spec.unschedulable:
            taints = (*taints, UNSCHEDULABLE)
        notes = meta.annotations or {}
        texts = tuple(notes.get(name) for name in (names.INVENTORY, names.DRIVER))
        cpu, memory = allocatable.get("cpu", "0"), allocatable.get("memory", "0")
        slots = tuple(allocatable.get(name) for name in (names.VGPU, names.WHOLE_GPU))
        conditions = read_conditions(node.status.conditions or ())
        images = node.status.images or ()
        until = suspended_until(taints, node.status.conditions or ())
        seen = (texts, meta.labels, taints, cpu, memory, slots, conditions, images, until)
        known = self._known.get(meta.name)
        if known is not None and known[0] == seen:
            return None
        found = _node(meta, taints if until is None else without_suspension(taints), (cpu, memory))
        found = replace(found, uid=meta.uid, conditions=conditions, images=images)
        found = _with_agent(found, slots) if until is None else _suspended(found, until)
        self._known[meta.name] = (seen, found)
        return found

    def known(self) -> set[str]:
        return set(self._known)

    def forget(self, name: str) -> None:
        self._known.pop(name, None)


def _node(meta: ObjectMeta, taints: tuple[Taint, ...], resources: tuple[str, str]) -> ObservedNode:
    facts, problem = NodeFacts(meta.name, meta.labels or {}, taints), ""
    try:
        gpus = gpus_of_node(meta.annotations)
    except BadFormat as error:
        gpus, problem = (), error.message
    cpu, memory = resources
    node = Node(
        meta.name,
        gpus,
        int(parse_quantity("cpu", cpu) * 1000),
        int(parse_quantity("memory", memory) * Fraction(1, BYTES_PER_MIB)),
    )
    return ObservedNode(node, facts, problem)


def _with_agent(observed: ObservedNode, slots: tuple[str | None, ...]) -> ObservedNode:
    """Add whether the node's agent answers; if it does not, the inventory is the last one that it wrote."""
    node = observed.node
    ready = is_agent_ready(node.gpus, slots)
    if any(count is not None for count in slots):  # otherwise no agent ever ran there
        observed = replace(observed, wanted=wanted_conditions(node.gpus, ready))
    if ready is not False:
        return observed
    message = describe_absence(observed.conditions)
    gpus = tuple(replace(gpu, state=GpuState.NO_AGENT, message=message) for gpu in node.gpus)
    return replace(observed, node=replace(node, gpus=gpus))


def _suspended(observed: ObservedNode, until: str) -> ObservedNode:
    """Close the GPUs of a suspended node: they are neither free nor lost, and its pods keep their shares."""
    gpus = tuple(replace(gpu, state=GpuState.SUSPENDED, message=until) for gpu in observed.node.gpus)
    return replace(observed, node=replace(observed.node, gpus=gpus))


def read_classes(objects: Iterable[KubeGpuClass]) -> GpuClasses:
    """The classes of a cluster, with those that cannot be used."""
    return GpuClasses(
        read_class(each.metadata.name, each.spec.requirements, each.spec.fallback) for each in objects
    )


def read_cluster(
    nodes: Iterable[KubeNode],
    pods: Iterable[KubePod],
    classes: Iterable[KubeGpuClass] = (),
    servers: Iterable[KubeGpuServer] = (),
) -> ClusterState:
    """Build the state of a listed cluster, as the service has it after a restart."""
    state = ClusterState(Placer(Snapshot(), classes=read_classes(classes)), lambda: 0.0)
    node_reader, pod_reader = NodeReader(), PodReader(dialects.read_pod)
    for node in nodes:
        observed = node_reader.read(node)
        if observed is not None:
            state.put_node(observed)
    for server in servers:
        state.put_node(read_server(server))
    for pod in pods:
        state.put_pod(pod_reader.read(pod))
    return state
