"""kube-scheduler's extender protocol: bytes in, bytes out.

For most pods filter decides and reserves in one step and answers with one node, so there is nothing left to
prioritize. A pod that prefers some nodes is offered all nodes whose GPUs fit: kube-scheduler compares them,
prioritize adds points for packing, and the bind takes the place or fails. Where that is enough, node names are
searched for in the body instead of decoded: at 5,000 names decoding would be most of the work.
"""

from dataclasses import dataclass

import msgspec

from milligpu.cluster.observed import ObservedPod, SchedulingSpec
from milligpu.cluster.pod_entry import PodEntry
from milligpu.cluster.preemption import choose_for_kube_scheduler
from milligpu.cluster.read import PodReader
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import BadFormat, BadRequest, NoCapacity
from milligpu.model.request import PodRef
from milligpu.placement.row_cache import RowCache
from milligpu.placement.snapshot import BoolArray
from milligpu.scheduler.template_nodes import filter_templates
from milligpu.wire import kubernetes

# 5,000 names of 253 characters and a pod of etcd's largest size.
BODY_MAX = 4 * 1024 * 1024
# A second scheduler offers a tenth of the nodes at a time, and the same tenths again while every node fits.
# Few lists are kept, because one may have thousands of names.
_OFFERS_MAX = 16
# kube-scheduler's range of an extender's points.
_POINTS_MAX = 10
LOOK_AT_ALL = "the pod has preferences: all nodes have to be compared"
NO_ROOM = "no GPU has enough free capacity; for details run: kubectl milligpu explain POD"


class _NodeList(msgspec.Struct):
    items: msgspec.Raw = msgspec.Raw(b"[]")


class _FilterArgs(msgspec.Struct):
    Pod: kubernetes.KubePod
    NodeNames: msgspec.Raw = msgspec.Raw(b"null")


class _SimulateArgs(msgspec.Struct):
    Pod: kubernetes.KubePod
    Nodes: _NodeList


class _Victims(msgspec.Struct):
    NumPDBViolations: int = 0


class _PreemptArgs(msgspec.Struct):
    Pod: kubernetes.KubePod
    NodeNameToMetaVictims: dict[str, _Victims] | None = None


class _BindArgs(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


@dataclass(frozen=True, slots=True)
class BindRequest:
    """A bind that kube-scheduler asks for."""

    pod: PodRef
    node: str


_filter_decoder = msgspec.json.Decoder(_FilterArgs)
_simulate_decoder = msgspec.json.Decoder(_SimulateArgs)
_preempt_decoder = msgspec.json.Decoder(_PreemptArgs)
_bind_decoder = msgspec.json.Decoder(_BindArgs)
_names_decoder = msgspec.json.Decoder(list[str])


class Extender:
    """Answers filter from the cluster state."""

    def __init__(self, state: ClusterState, pods: PodReader) -> None:
        self._state = state
        self._pods = pods
        self._offers = RowCache[bytes, BoolArray](state.placer.snapshot, _OFFERS_MAX)

    def filter(self, body: bytes) -> bytes:
        """Answer to which of the nodes the pod goes. Raises `BadFormat` for what is no filter request."""
        try:
            args = _filter_decoder.decode(body)
            observed = self._pods.read(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("filter", str(error)) from None
        try:
            return self._filter(observed, bytes(args.NodeNames))
        finally:
            self._pods.forget_unknown(observed.uid, self._state)

    def _filter(self, observed: ObservedPod, names: bytes) -> bytes:
        if not names.isascii():
            raise BadFormat("NodeNames", "a name that is not ASCII")
        if not names.startswith(b"["):
            return error_answer("NodeNames is missing: set nodeCacheCapable: true in the extender's configuration")
        if not observed.uid:
            return error_answer("metadata.uid is missing: only pods of an API server can be placed")
        if observed.node:
            return error_answer(f"pod {observed.spec.pod} is already on {observed.node}")
        if not observed.spec.wants_gpu:
            return b'{"NodeNames":' + names + b"}"
        try:
            return self._place(observed.spec, names, observed.nominated)
        except NoCapacity as error:
            return error_answer(error.message)
        except BadRequest as error:
            return no_node_answer(names, error.message)

    def simulate(self, body: bytes) -> bytes:
        """Answer an autoscaler which Node objects could take the pod; nothing is reserved. Raises `BadFormat`."""
        try:
            args = _simulate_decoder.decode(body)
            spec = self._read(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("simulate", str(error)) from None
        items = bytes(args.Nodes.items)
        if not spec.wants_gpu or spec.is_remote:
            return b'{"Nodes":{"items":' + items + b"}}"
        return filter_templates(self._state, spec.request, items, NO_ROOM)

    def prioritize(self, body: bytes) -> bytes:
        """Answer with points for packing, from 0 to 10, for each node. Raises `BadFormat`."""
        try:
            args = _filter_decoder.decode(body)
            spec = self._read(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("prioritize", str(error)) from None
        offered = _names(bytes(args.NodeNames))
        ranked: dict[str, float] = {}
        if spec.wants_gpu and spec.request is not None and not spec.is_remote:
            ranked = self._state.reservations.ranked(spec, self._state.placer.mask(offered))
        return msgspec.json.encode(
            [{"Host": name, "Score": round(_POINTS_MAX * ranked.get(name, 0.0))} for name in offered]
        )

    def preempt(self, body: bytes) -> bytes:
        """Answer on which node which pods may be evicted for a pod: those that make room on a GPU, or none.

        The answer has one node, so that what its pods leave can be kept. Raises `BadFormat`.
        """
        try:
            args = _preempt_decoder.decode(body)
            spec = self._read(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("preempt", str(error)) from None
        offered = args.NodeNameToMetaVictims or {}
        if not spec.wants_gpu:
            return b'{"NodeNameToMetaVictims":' + _meta_victims(body) + b"}"
        # The leader chooses victims on GPU servers: kube-scheduler would evict pods from nodes.
        chosen = None if spec.is_remote else choose_for_kube_scheduler(self._state, spec, offered)
        if chosen is None:
            return b'{"NodeNameToMetaVictims":{}}'
        node, victims = chosen.node, chosen.victims
        self._state.reservations.begin_preemption(spec, node, victims)
        found = {
            "Pods": [{"UID": uid} for uid in victims],
            "NumPDBViolations": offered[node].NumPDBViolations,
        }
        return msgspec.json.encode({"NodeNameToMetaVictims": {node: found}})

    def _read(self, pod: kubernetes.KubePod) -> SchedulingSpec:
        """Read a pod that no place is reserved for."""
        spec = self._pods.read(pod).spec
        self._pods.forget_unknown(spec.pod.uid, self._state)
        return spec

    def _place_remotely(self, spec: SchedulingSpec, names: bytes) -> bytes:
        """Reserve a share on a GPU server; kube-scheduler chooses the node for the pod itself."""
        entry = self._state.entry(spec.pod.uid)
        if entry is not None and entry.spec is spec and entry.grant is not None:
            self._state.reservations.confirm(entry)
        elif self._state.reservations.reserve(spec, self._state.nodes.admitted(spec.constraints)) is None:
            return no_node_answer(names, NO_ROOM)
        return b'{"NodeNames":' + names + b"}"

    def _place(self, spec: SchedulingSpec, names: bytes, nominated: str) -> bytes:
        if spec.is_remote:
            return self._place_remotely(spec, names)
        entry = self._state.entry(spec.pod.uid)
        kept = entry is not None and entry.spec is spec and self._reserved_here(entry, names)
        if entry is not None and kept and not (spec.takes_turns and self._state.is_scored(spec)):
            return _only(self._state.reservations.confirm(entry).node)
        woken = entry is not None and bool(nominated) and entry.nudged == nominated
        if entry is not None and woken and names == b"[%b]" % _quoted(nominated):
            # kube-scheduler tries this node first, and would not look at others. It asks again if there are none.
            entry.nudged = ""
            return no_node_answer(names, LOOK_AT_ALL)
        if self._state.is_scored(spec):
            offer = self._state.reservations.offer(spec, self._rows(names))
            if offer:
                return b'{"NodeNames":' + msgspec.json.encode(offer) + b"}"
        if entry is not None and kept and entry.grant is not None:
            return _only(self._state.reservations.confirm(entry).node)
        grant = self._state.reservations.reserve_on(spec, self._rows(names))
        return no_node_answer(names, NO_ROOM) if grant is None else _only(grant.node)

    def _rows(self, names: bytes) -> BoolArray:
        return self._offers.get(names, lambda: self._state.placer.mask(_names(names)))

    @staticmethod
    def _reserved_here(entry: PodEntry, names: bytes) -> bool:
        return entry.grant is not None and _quoted(entry.node) in names

    @staticmethod
    def bind_request(body: bytes) -> BindRequest:
        """Read a bind request. Raises `BadFormat`."""
        try:
            args = _bind_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("bind", str(error)) from None
        for field, value in (("PodName", args.PodName), ("PodNamespace", args.PodNamespace)):
            if not value or "/" in value:
                raise BadFormat("bind", f"{field}: invalid value {value!r}: must be a name")
        if not args.PodUID or not args.Node:
            raise BadFormat("bind", "PodUID and Node are required")
        return BindRequest(PodRef(args.PodNamespace, args.PodName, args.PodUID), args.Node)


def error_answer(message: str) -> bytes:
    """Make kube-scheduler retry the pod later; it shows the message in an event."""
    return msgspec.json.encode({"Error": message})


def no_node_answer(names: bytes, message: str) -> bytes:
    """Refuse all nodes, as unresolvable: kube-scheduler would evict pods from GPUs that do not help."""
    if b"\\" in names or names.count(b'"') != 2 * names.count(b",") + 2:
        # Not a plain list of names: decode it.
        nodes = msgspec.json.encode(dict.fromkeys(_names(names), message))
    else:
        why = b":" + msgspec.json.encode(message)
        nodes = b"{" + names[1:-1].replace(b",", why + b",") + why + b"}"
    return b'{"NodeNames":[],"FailedAndUnresolvableNodes":' + nodes + b"}"


def _meta_victims(body: bytes) -> bytes:
    """The victims as kube-scheduler proposed them."""
    return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["NodeNameToMetaVictims"])


def _names(text: bytes) -> list[str]:
    try:
        return _names_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat("NodeNames", str(error)) from None


def _only(node: str) -> bytes:
    return b'{"NodeNames":[' + _quoted(node) + b"]}"


def _quoted(node: str) -> bytes:
    return b'"' + node.encode() + b'"'
