"""kube-scheduler's extender protocol: bytes in, bytes out.

filter decides and reserves in one step and answers with one node, so there is nothing left to prioritise. Node
names are searched for in the body rather than decoded where that answers the question: at 5,000 names decoding
would be most of the work.
"""

from dataclasses import dataclass

import msgspec

from milligpu.kube import objects
from milligpu.model.errors import BadFormat, BadRequest, NoCapacity
from milligpu.placement.snapshot import BoolArray
from milligpu.scheduler.books import Books, Entry
from milligpu.scheduler.sight import PodReader, Wish

# 5,000 names of 253 characters and a pod of etcd's largest size.
BODY_MAX = 4 * 1024 * 1024
# A second scheduler offers the cluster in ten parts, and the same ones again while every node can take the pods.
_OFFERS_MAX = 16
NO_ROOM = "no GPU has room for it now (kubectl milligpu explain)"


class _FilterArgs(msgspec.Struct):
    Pod: objects.Pod
    NodeNames: msgspec.Raw = msgspec.Raw(b"null")


class _BindArgs(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


@dataclass(frozen=True, slots=True)
class BindOrder:
    """A bind that kube-scheduler asks for."""

    name: str
    namespace: str
    uid: str
    node: str


_filter_decoder = msgspec.json.Decoder(_FilterArgs)
_bind_decoder = msgspec.json.Decoder(_BindArgs)
_names_decoder = msgspec.json.Decoder(list[str])


class Extender:
    """Answers filter from the books."""

    def __init__(self, books: Books, pods: PodReader) -> None:
        self._books = books
        self._pods = pods
        self._offers: dict[bytes, BoolArray] = {}
        self._layout = -1

    def filter(self, body: bytes) -> bytes:
        """Which of the nodes the pod goes to. Raises `BadFormat` for what is no request at all."""
        try:
            args = _filter_decoder.decode(body)
            sight = self._pods.sight(args.Pod)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("filter", str(error)) from None
        names = bytes(args.NodeNames)
        if not names.isascii():
            raise BadFormat("NodeNames", "a name that no node can have")
        if not names.startswith(b"["):
            return failure("NodeNames is missing: set nodeCacheCapable: true in the extender's configuration")
        if not sight.uid:
            return failure("metadata.uid is missing: only pods of an API server can be placed")
        if sight.node:
            return failure(f"pod {sight.wish.pod} is on {sight.node} already")
        if not sight.wish.wants_gpu:
            return b'{"NodeNames":' + names + b"}"
        try:
            return self._place(sight.wish, names)
        except NoCapacity as error:
            return failure(error.message)
        except BadRequest as error:
            return refusal(names, error.message)

    def _place(self, wish: Wish, names: bytes) -> bytes:
        entry = self._books.entry(wish.pod.uid)
        if entry is not None and entry.wish is wish and self._promised_here(entry, names):
            return _only(self._books.confirm(entry).node)
        grant = self._books.reserve_on(wish, self._rows(names))
        return refusal(names, NO_ROOM) if grant is None else _only(grant.node)

    def _rows(self, names: bytes) -> BoolArray:
        """Their rows; few lists are kept, because one may have thousands of names."""
        placer = self._books.placer
        if self._layout != placer.snapshot.layout:
            self._layout = placer.snapshot.layout
            self._offers.clear()
        rows = self._offers.get(names)
        if rows is None:
            if len(self._offers) >= _OFFERS_MAX:
                self._offers.clear()
            rows = self._offers[names] = placer.mask(_names(names))
        return rows

    @staticmethod
    def _promised_here(entry: Entry, names: bytes) -> bool:
        return entry.grant is not None and _quoted(entry.node) in names

    @staticmethod
    def bind_order(body: bytes) -> BindOrder:
        """Read a bind request, or raise `BadFormat`."""
        try:
            args = _bind_decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFormat("bind", str(error)) from None
        for field, value in (("PodName", args.PodName), ("PodNamespace", args.PodNamespace)):
            if not value or "/" in value:
                raise BadFormat("bind", f"{field}={value!r}: want a name")
        if not args.PodUID or not args.Node:
            raise BadFormat("bind", "PodUID or Node is empty")
        return BindOrder(args.PodName, args.PodNamespace, args.PodUID, args.Node)


def failure(message: str) -> bytes:
    """kube-scheduler tries the pod again later, and shows the message in an event."""
    return msgspec.json.encode({"Error": message})


def refusal(names: bytes, message: str) -> bytes:
    """None of the nodes. Nobody's eviction would help, as far as kube-scheduler can judge: no preemption."""
    if b"\\" in names or names.count(b'"') != 2 * names.count(b",") + 2:
        # No list of names that could be names: read it with care.
        nodes = msgspec.json.encode(dict.fromkeys(_names(names), message))
    else:
        why = b":" + msgspec.json.encode(message)
        nodes = b"{" + names[1:-1].replace(b",", why + b",") + why + b"}"
    return b'{"NodeNames":[],"FailedAndUnresolvableNodes":' + nodes + b"}"


def _names(text: bytes) -> list[str]:
    try:
        return _names_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFormat("NodeNames", str(error)) from None


def _only(node: str) -> bytes:
    return b'{"NodeNames":[' + _quoted(node) + b"]}"


def _quoted(node: str) -> bytes:
    return b'"' + node.encode() + b'"'
