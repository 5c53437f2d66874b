"""Who holds which share, and who waits: the one place where shares are given and taken back.

Fed by watches and asked by the extender, one call at a time; no I/O. What pods hold follows the cluster: a bound
pod holds what its grant says, whoever wrote it and whatever was planned here. Beside that there are promises, kept
for a while: to pods that kube-scheduler was told about (reserved) or shall be (nominated).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count

import numpy as np

from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.footprint import held, peak
from milligpu.model.gpu import Node
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray, Holding
from milligpu.scheduler.eligible import Constraints, Place
from milligpu.scheduler.sight import NodeSight, PodSight, Wish

# kube-scheduler binds milliseconds after it filtered; what takes longer than this was given up.
RESERVED_S = 30.0
# A nominated pod's turn comes when those before it are bound: thousands a minute, even on two cores.
NOMINATED_S = 300.0
# A request that nobody answered may still be carried out while the API server keeps it: a minute by default.
DOUBT_S = 60.0
_FOREVER = float("inf")


class Stage(Enum):
    """How far a pod has come."""

    WAITING = "waiting"
    """It holds nothing."""
    NOMINATED = "nominated"
    """It is promised a place, and kube-scheduler has yet to ask."""
    RESERVED = "reserved"
    """kube-scheduler was told the place."""
    BINDING = "binding"
    """The Binding is under way."""
    DOUBTFUL = "doubtful"
    """Nobody knows whether the Binding was carried out."""
    BOUND = "bound"
    """It is on its node."""


_PROMISED = frozenset({Stage.NOMINATED, Stage.RESERVED})


@dataclass(slots=True)
class Entry:
    """One pod."""

    wish: Wish
    since: float = 0.0
    """When it was first heard of."""
    number: int = 0
    """Pods are numbered in the order in which they came."""
    stage: Stage = Stage.WAITING
    grant: Grant | None = None
    node: str = ""
    until: float = _FOREVER
    """When a promise ends."""
    doubt_until: float = -_FOREVER
    """Until when a bind that nobody answered may yet be carried out."""
    seen: bool = False
    """Whether the watch has shown it; kube-scheduler may be ahead."""
    gated: bool = False
    resize: str = ""
    """What it wants instead of its grant, as it wrote it."""
    coming: Grant | None = None
    """The next generation of its grant, while it is being written: what either takes is taken."""
    nominated: str = ""
    """The node in its status."""
    refused_at: float = -_FOREVER
    """When kube-scheduler last would not have the node it was nominated to."""
    turned_away: bool = False
    """Whether kube-scheduler asked about it and there was no room: it will not ask again by itself."""
    told: str = ""
    """What its last event said."""
    told_at: float = -_FOREVER


class Books:
    """See the module."""

    def __init__(self, placer: Placer, now: Callable[[], float]) -> None:
        self.placer = placer
        self._snap = placer.snapshot
        self._now = now
        self._entries: dict[str, Entry] = {}
        self._waiting: dict[str, Entry] = {}
        self.resizing: dict[str, Entry] = {}
        """Bound pods that once asked for another share."""
        self._numbers = count(1)
        self._on_node: dict[str, set[str]] = {}
        self._places: dict[str, Place] = {}
        self._masks: dict[Constraints, BoolArray | None] = {}
        self._masks_layout = -1
        self._used: BoolArray = np.zeros(0, np.bool_)
        self._used_layout = -1
        self.frontier = (0, -_FOREVER)
        """The number of the newest pod that kube-scheduler has asked about, and when."""
        self.freed = 0
        """Counts up whenever something may fit that did not before."""
        self.came = 0
        """Counts up whenever a pod begins to wait, or waits for something else."""

    # -- reading -----------------------------------------------------------------------------------------------

    def entry(self, uid: str) -> Entry | None:
        """What is known of a pod."""
        return self._entries.get(uid)

    def waiting(self) -> list[Entry]:
        """Pods that want GPUs and hold none, the longest known first."""
        return list(self._waiting.values())

    def count(self, stage: Stage) -> int:
        """How many pods have come so far."""
        return sum(each.stage is stage for each in self._entries.values())

    def admitted(self, constraints: Constraints) -> list[str]:
        """The nodes that a pod's own conditions allow."""
        return [name for name, place in self._places.items() if constraints.admit(place)]

    def fits(self, wish: Wish) -> bool:
        """Whether there is room for a waiting pod now."""
        if wish.request is None:
            return False
        with suppress(BadRequest):
            return self.placer.fits(wish.request, self.admitted(wish.constraints))
        return False

    def node_names(self) -> list[str]:
        """All nodes."""
        return list(self._places)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self._places)

    # -- nodes -------------------------------------------------------------------------------------------------

    def put_node(self, sight: NodeSight) -> None:
        """A node came or changed."""
        name, node = sight.node.name, sight.node
        if self._places.get(name) != sight.place:
            self._places[name] = sight.place
            self._masks.clear()
            self.freed += 1
        old = self._snap.nodes.get(name)
        if old is not None and replace(old, labels=node.labels) == node:
            return
        if old is not None and _same_but_states(old, node):
            self._set_states(node)
        else:
            self._rebuild(name, node)
        self.freed += 1

    def drop_node(self, name: str) -> None:
        """A node went; pods that are still bound to it hold nothing that anybody else could have."""
        self._places.pop(name, None)
        self._masks.clear()
        if name in self._snap.nodes:
            self._unpromise(name)
            self._snap.remove(name)

    def _set_states(self, node: Node) -> None:
        for gpu in node.gpus:
            if self._snap.state(node.name, gpu.uuid) is not gpu.state:
                self._snap.set_state(node.name, gpu.uuid, gpu.state)
        self._snap.nodes[node.name] = node

    def _rebuild(self, name: str, node: Node) -> None:
        if name in self._snap.nodes:
            self._unpromise(name)
            self._snap.remove(name)
        self._snap.add(node)
        for uid in sorted(self._on_node.get(name, ())):
            self._book(self._entries[uid])

    def _unpromise(self, name: str) -> None:
        """Take back the promises on a node that changed; who was promised something will be asked about again."""
        for uid in tuple(self._on_node.get(name, ())):
            entry = self._entries[uid]
            if entry.stage in _PROMISED:
                self._set_free(entry)

    # -- pods --------------------------------------------------------------------------------------------------

    def put_pod(self, sight: PodSight) -> None:
        """A pod came or changed."""
        if sight.ended:
            self.drop_pod(sight.uid)
        elif sight.node:
            self._put_bound(sight)
        elif sight.wish.wants_gpu:
            self._put_waiting(sight)

    def _put_bound(self, sight: PodSight) -> None:
        entry = self._entry(sight.wish)
        entry.seen, entry.resize = True, sight.resize
        if sight.resize:
            self.resizing[sight.uid] = entry
        if entry.node == sight.node and entry.stage is not Stage.WAITING:
            if _is_later(entry.grant, sight.grant):
                return  # an old sight: the resize that it does not know of has been written
            if entry.grant == sight.grant:
                entry.stage = Stage.BOUND
                entry.until = _FOREVER if entry.coming is None else entry.until
                return
        self._set_free(entry)
        del self._waiting[sight.uid]
        entry.stage, entry.node, entry.grant, entry.until = Stage.BOUND, sight.node, sight.grant, _FOREVER
        entry.coming = None
        self._on_node.setdefault(sight.node, set()).add(sight.uid)
        self._book(entry)
        self._yield_to_the_truth(sight.node)

    def _put_waiting(self, sight: PodSight) -> None:
        entry = self._entry(sight.wish)
        was_out = entry.gated or not entry.seen
        entry.seen, entry.gated = True, sight.gated or sight.leaving
        changed = entry.wish is not sight.wish
        entry.wish = sight.wish
        self.came += changed or was_out
        # kube-scheduler takes a nomination away when it could not use it.
        refused = bool(entry.nominated) and not sight.nominated and entry.stage is Stage.NOMINATED
        entry.nominated = sight.nominated
        if refused:
            entry.refused_at = self._now()
        if entry.stage in _PROMISED and (changed or refused or entry.gated):
            self._set_free(entry)

    def _entry(self, wish: Wish) -> Entry:
        entry = self._entries.get(wish.pod.uid)
        if entry is None:
            entry = Entry(wish, self._now(), next(self._numbers))
            self._entries[wish.pod.uid] = self._waiting[wish.pod.uid] = entry
            if wish.request is not None and wish.request.wants_gpu:
                self._observe(wish.request)
        return entry

    def _observe(self, request: PodRequest) -> None:
        # A class that does not exist: the pod is told so when it is placed.
        with suppress(BadRequest):
            self.placer.observe(request)

    def drop_pod(self, uid: str) -> None:
        """A pod ended or is gone."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._set_free(entry)
            del self._waiting[uid]
            self.resizing.pop(uid, None)

    def uids(self) -> set[str]:
        """All pods that a list must name, or they are gone; what the watch has yet to show is not among them."""
        return {uid for uid, entry in self._entries.items() if entry.seen}

    # -- giving ------------------------------------------------------------------------------------------------

    def reserve(self, wish: Wish, among: Iterable[str]) -> Grant | None:
        """Decide for kube-scheduler where the pod goes, and keep it for the bind that follows."""
        return self.reserve_on(wish, self.placer.mask(among))

    def reserve_on(self, wish: Wish, rows: BoolArray) -> Grant | None:
        """As `reserve`, for nodes whose rows were looked up before."""
        entry = self._entry(wish)
        self._asked_about(entry)
        if entry.stage is Stage.BOUND:
            raise NoCapacity(f"pod {wish.pod} is on {entry.node} already")
        if entry.stage is Stage.BINDING or entry.stage is Stage.DOUBTFUL:
            raise NoCapacity(f"pod {wish.pod}: the outcome of an earlier bind is not known yet")
        self._set_free(entry)
        grant = self._place(_asked(wish), rows)
        entry.turned_away = grant is None
        if grant is not None:
            self._promise(entry, grant, Stage.RESERVED, RESERVED_S)
        return grant

    def confirm(self, entry: Entry) -> Grant:
        """kube-scheduler asked about the place that the pod was promised."""
        assert entry.grant is not None
        self._asked_about(entry)
        if entry.stage in _PROMISED:
            entry.stage, entry.until = Stage.RESERVED, self._now() + RESERVED_S
        return entry.grant

    def _asked_about(self, entry: Entry) -> None:
        if entry.number > self.frontier[0]:
            self.frontier = entry.number, self._now()

    def nominate(self, entry: Entry) -> Grant | None:
        """Promise a waiting pod the best place in the cluster that its conditions allow."""
        assert entry.stage is Stage.WAITING
        grant = self._place(_asked(entry.wish), self._mask(entry.wish.constraints))
        if grant is not None:
            self._promise(entry, grant, Stage.NOMINATED, NOMINATED_S)
        return grant

    def _place(self, request: PodRequest, rows: BoolArray | None) -> Grant | None:
        """Nodes in use first: a node that stays empty can take the largest job, or be switched off."""
        if request.strategy is None and request.wants_gpu:
            used = self._in_use()
            grant = self.placer.place_on(request, used if rows is None else used & rows)
            if grant is not None:
                return grant
        return self.placer.place_on(request, rows)

    def _in_use(self) -> BoolArray:
        if self._used_layout != self._snap.layout:
            self._used_layout = self._snap.layout
            self._used = self._snap.tenants.max(axis=1) > 0
        return self._used

    def _mark_use(self, node: str) -> None:
        """Keep the mask: working it out anew for 5,000 nodes would cost as much as a decision."""
        if self._used_layout == self._snap.layout:
            for row in self._snap.rows_of.get(node, ()):
                self._used[row] = self._snap.tenants[row].any()

    def _mask(self, constraints: Constraints) -> BoolArray | None:
        if self._masks_layout != self._snap.layout:
            self._masks.clear()
            self._masks_layout = self._snap.layout
        if constraints not in self._masks:
            if len(self._masks) >= _MASKS_MAX:
                self._masks.clear()
            names = self.admitted(constraints)
            self._masks[constraints] = None if len(names) == self.nodes else self.placer.mask(names)
        return self._masks[constraints]

    def _promise(self, entry: Entry, grant: Grant, stage: Stage, lasts_s: float) -> None:
        assert entry.wish.request is not None
        self.placer.commit(entry.wish.request, grant)
        del self._waiting[entry.wish.pod.uid]
        entry.stage, entry.grant, entry.node = stage, grant, grant.node
        entry.until = self._now() + lasts_s
        self._on_node.setdefault(grant.node, set()).add(grant.uid)
        self._mark_use(grant.node)

    # -- binding -----------------------------------------------------------------------------------------------

    def begin_bind(self, wish: Wish, node: str) -> Grant | None:
        """The grant to bind with; decided now if there is no promise, as after a restart. None for no GPU."""
        if not wish.wants_gpu:
            return None
        entry = self._entry(wish)
        if entry.stage is Stage.BOUND:
            raise NoCapacity(f"pod {wish.pod} is on {entry.node} already")
        if entry.stage is Stage.BINDING or (entry.stage is Stage.DOUBTFUL and entry.node != node):
            raise NoCapacity(f"pod {wish.pod}: the outcome of an earlier bind is not known yet")
        if (entry.node != node or entry.grant is None) and self.reserve(wish, [node]) is None:
            raise NoCapacity(f"node {node} has no room left for pod {wish.pod}")
        entry.stage, entry.until = Stage.BINDING, _FOREVER
        return entry.grant

    def end_bind(self, uid: str, *, bound: bool) -> None:
        """The API server has answered."""
        entry = self._entries.get(uid)
        if entry is None or not (entry.stage is Stage.BINDING or entry.stage is Stage.DOUBTFUL):
            return  # the watch was faster
        if bound:
            entry.stage, entry.until = Stage.BOUND, _FOREVER
            # If the watch never shows it, it is gone: a list finds that out.
            entry.seen = True
        elif entry.doubt_until > self._now():
            entry.stage = Stage.DOUBTFUL
        else:
            self._set_free(entry)

    def doubt_bind(self, uid: str) -> None:
        """No answer came: keep the place until somebody has looked."""
        entry = self._entries.get(uid)
        if entry is not None and entry.stage is Stage.BINDING:
            entry.stage, entry.doubt_until = Stage.DOUBTFUL, self._now() + DOUBT_S

    def found_unbound(self, uid: str) -> None:
        """The pod was looked up and has no node; that settles it once no request can be under way any more."""
        entry = self._entries.get(uid)
        if entry is not None and entry.stage is Stage.DOUBTFUL and entry.doubt_until <= self._now():
            self._set_free(entry)

    def doubtful(self) -> list[Entry]:
        """Pods whose binding has to be looked up."""
        return [each for each in self._entries.values() if each.stage is Stage.DOUBTFUL]

    # -- time --------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Take back promises that nobody claimed."""
        now = self._now()
        for uid, entry in tuple(self._entries.items()):
            if entry.until <= now and entry.stage in _PROMISED:
                self._set_free(entry)
            if entry.stage is Stage.WAITING and not entry.seen:
                self.drop_pod(uid)  # kube-scheduler asked about a pod that was gone by then

    # -- the snapshot ------------------------------------------------------------------------------------------

    def _set_free(self, entry: Entry) -> None:
        uid = entry.wish.pod.uid
        if entry.node:
            self._on_node[entry.node].discard(uid)
            if not self._on_node[entry.node]:
                del self._on_node[entry.node]
        if uid in self._snap.holdings:
            self.placer.release(uid)
            self._mark_use(entry.node)
            self.freed += 1
        self.came += entry.stage is not Stage.WAITING
        entry.stage, entry.grant, entry.node, entry.until = Stage.WAITING, None, "", _FOREVER
        entry.coming = None
        self._waiting[uid] = entry

    def _book(self, entry: Entry) -> None:
        """Book what a bound pod holds, by force: it is there, whether or not it should be."""
        if entry.node in self._snap.nodes and entry.wish.pod.uid not in self._snap.holdings:
            holding = self.holding(entry, entry.grant)
            if entry.coming is not None:
                holding = _both(holding, self.holding(entry, entry.coming))
            self._snap.take(holding, force=True)
            self._mark_use(entry.node)

    def rebook(self, entry: Entry) -> None:
        """What a bound pod holds has changed, or is about to."""
        if entry.wish.pod.uid in self._snap.holdings:
            self.placer.release(entry.wish.pod.uid)
        self._book(entry)
        self.freed += 1

    def holding(self, entry: Entry, grant: Grant | None) -> Holding:
        """What a pod on its node would hold with this grant."""
        request = entry.wish.request
        shares = dict[str, tuple[GpuShare, ...]]() if grant is None else grant.containers
        kinds = {} if request is None else {each.name: each.kind for each in request.containers}
        cards = {gpu.uuid: gpu for gpu in self._snap.nodes[entry.node].gpus}
        # A card that the node no longer reports cannot be given to anybody else either.
        peaks = tuple((gpu, peak) for gpu, peak in held(shares, kinds, cards).items() if gpu in cards)
        if request is None:
            return Holding(entry.wish.pod.uid, entry.node, peaks)
        return Holding(
            entry.wish.pod.uid,
            entry.node,
            peaks,
            request.cpu_milli,
            request.memory_mib,
            request.locality,
            request.priority,
        )

    def _yield_to_the_truth(self, node: str) -> None:
        """Where a bound pod takes more than was left, promises give way."""
        for stage in (Stage.NOMINATED, Stage.RESERVED):
            for uid in sorted(self._on_node.get(node, ())):
                if not self._overcommitted(node):
                    return
                if self._entries[uid].stage is stage:
                    self._set_free(self._entries[uid])

    def _overcommitted(self, node: str) -> bool:
        rows = self._snap.rows_of.get(node, [])
        return bool((self._snap.milli[rows] < 0).any() or (self._snap.mib[rows] < 0).any())


# A cluster has a handful of ways in which pods choose nodes; a mask of 5,000 rows is 5 KB.
_MASKS_MAX = 1024


def _asked(wish: Wish) -> PodRequest:
    if wish.request is None:
        raise BadRequest("pod", str(wish.pod), f"a request that can be read; {wish.mistake}")
    return wish.request


def _is_later(known: Grant | None, seen: Grant | None) -> bool:
    return known is not None and seen is not None and known.generation > seen.generation


def _both(a: Holding, b: Holding) -> Holding:
    """On each card the larger of two grants of one pod."""
    theirs = dict(b.cards)
    return replace(a, cards=tuple((gpu, peak(demand, theirs[gpu])) for gpu, demand in a.cards))


def _same_but_states(old: Node, new: Node) -> bool:
    if (old.cpu_milli, old.memory_mib, len(old.gpus)) != (new.cpu_milli, new.memory_mib, len(new.gpus)):
        return False
    pairs = zip(old.gpus, new.gpus, strict=True)
    return all(replace(a, state=b.state, reason=b.reason) == b for a, b in pairs)
