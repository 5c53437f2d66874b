"""Places that are kept for a while: reservations for pods that kube-scheduler asked about, and nominations.

A reservation holds until the pod is bound or its time is over. A nomination is a hint: a pod that kube-scheduler
asks about takes its place. What evicted pods leave is kept for the pod that they were evicted for.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from milligpu.cluster.held_shares import RESERVATIONS, HeldShares
from milligpu.cluster.kept_shares import KeptShares, Preemption
from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.place_choice import PlaceChoice, asked_of
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.pod_table import PodTable
from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.footprint import GpuDemand
from milligpu.model.grant import Grant
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray, Holding
from milligpu.placement.trial import Trial

# kube-scheduler binds milliseconds after filter; after this long it has given up. A pod that it asks about over and
# over without a bind, because another plugin rejects it, keeps no place after this long: its bind chooses one.
RESERVED_S = 30.0
# kube-scheduler tries a nominated pod at once, unless others are before it; then the time starts again. After this
# long it cannot use the place, and another pod may.
NOMINATED_S = 5.0
# A nomination of a higher priority is left alone for as long as kube-scheduler needs to ask about it.
_HINT_S = 2.0
# At most this many nominations, oldest first, make room for another pod: counting each again takes microseconds.
_HINTS_MAX = 64
# After this long without a request kube-scheduler has stopped, and no pod is next.
PATIENCE_S = 1.0
# A nomination that was not used is tried again after this long, then after twice as long, until capacity is freed.
HOLD_OFF_S, HOLD_OFF_MAX_S = 2.0, 64.0

# A pod of a queue keeps its place while the gate is removed and kube-scheduler gets to it.
ADMITTED_S = 60.0

NOBODY_SHRUNK: Mapping[str, Grant] = {}
_BEFORE_BIND = RESERVATIONS | {PodStage.WAITING}


class Reservations:
    """Reserves, nominates and releases places."""

    def __init__(
        self,
        placer: Placer,
        pods: PodTable,
        shares: HeldShares,
        choice: PlaceChoice,
        entry_of: Callable[[SchedulingSpec], PodEntry],
    ) -> None:
        """`entry_of` returns a pod's entry, which is made if the pod is new."""
        self._placer = placer
        self._snap = placer.snapshot
        self._pods = pods
        self._shares = shares
        self._choice = choice
        self._entry_of = entry_of
        self._kept = KeptShares(placer.snapshot)
        self.inherited: list[PodEntry] = []
        """Pods whose place was freed for them, for `Nominator` to make kube-scheduler retry them."""
        self._handed: dict[str, PodEntry] = {}
        """Those of them that kube-scheduler has not asked about since: perhaps it saw the end of others later."""

    # -- for kube-scheduler ------------------------------------------------------------------------------------

    def reserve(self, spec: SchedulingSpec, among: Iterable[str]) -> Grant | None:
        """Choose the pod's GPUs among these nodes, and keep them for the bind that follows."""
        return self._reserve(spec, self._placer.mask(among), class_elsewhere=False)

    def reserve_on(self, spec: SchedulingSpec, rows: BoolArray) -> Grant | None:
        """Reserve for kube-scheduler, which offers some nodes; a free GPU of the pod's class may be on others.

        A pod that was nominated to a node that is not offered gets the fallback of its class: kube-scheduler checks
        more, and has rejected that node.
        """
        entry = self._entry_of(spec)
        rejected = entry.stage is PodStage.NOMINATED and not self._offered(entry, rows)
        return self._reserve(spec, rows, class_elsewhere=not rejected)

    def offer(self, spec: SchedulingSpec, rows: BoolArray) -> list[str]:
        """Return all nodes among which kube-scheduler may choose, without keeping any; the bind takes the place.

        A pod of a queue keeps the place with which its turn came until then. Empty if there are none or only one,
        if a place is kept for the pod otherwise, or if it starts with its group: then `reserve_on` answers.
        """
        entry = self._entry_of(spec)
        if spec.group is not None or (spec.takes_turns and entry.stage is not PodStage.RESERVED):
            return []
        if entry.stage in RESERVATIONS and not spec.takes_turns:
            self._shares.release(entry)
        kept = entry.stage is PodStage.RESERVED
        if (entry.stage is not PodStage.WAITING and not kept) or self._kept.under_way(spec.pod.uid) is not None:
            return []
        found = self._fitting(spec, rows, class_elsewhere=True)
        if len(found) <= 1:
            return []
        if kept:
            self.confirm(entry)
        self._pods.note_asked(entry)
        entry.spec, entry.refused_by_filter = spec, False
        return list(found)

    def _fitting(self, spec: SchedulingSpec, rows: BoolArray, *, class_elsewhere: bool) -> dict[str, float]:
        """Return the nodes on which the pod fits; the place that is kept for it counts as free."""
        with Trial(self._snap) as trial:
            trial.put(spec.pod.uid, None)
            return self._choice.fitting(spec, rows, class_elsewhere=class_elsewhere)

    def move(self, spec: SchedulingSpec, among: Iterable[str]) -> Grant | None:
        """Reserve a place on these nodes; if there is none, a pod of a queue keeps the one that it has."""
        entry = self._entry_of(spec)
        place, until, reserved = entry.grant, entry.until, entry.stage is PodStage.RESERVED
        found = self.reserve(spec, among)
        if found is None and reserved and place is not None and spec.takes_turns:
            self._shares.reserve(entry, place, PodStage.RESERVED, until)
        return found

    def ranked(self, spec: SchedulingSpec, rows: BoolArray) -> dict[str, float]:
        """Return the nodes that fit, with the rank of each from 0 to 1: where the pod leaves the most room is 1."""
        return self._fitting(spec, rows, class_elsewhere=False)

    def _offered(self, entry: PodEntry, rows: BoolArray) -> bool:
        return any(bool(rows[row]) for row in self._snap.rows_of.get(entry.node, ()))

    def _reserve(self, spec: SchedulingSpec, rows: BoolArray, *, class_elsewhere: bool) -> Grant | None:
        entry = self._entry_of(spec)
        self._pods.note_asked(entry)
        if entry.stage is PodStage.BOUND:
            raise NoCapacity(f"pod {spec.pod} is already on {entry.node}")
        if entry.stage is PodStage.BINDING or entry.stage is PodStage.BIND_UNKNOWN:
            raise NoCapacity(f"pod {spec.pod}: the outcome of an earlier bind is unknown")
        if spec.group is not None and entry.stage is PodStage.WAITING:
            entry.refused_by_filter = True
            return None  # its place is found together with those of its group
        since = self._promised_at(entry)
        self._shares.release(entry)
        entry.refused_by_filter = True
        kept = self._kept.leave_out(spec.pod.uid)
        grant = self._choice.among(spec, rows, class_elsewhere=class_elsewhere)
        if grant is None and not self.is_unused(entry):
            grant = self._place_over_nominations(spec, rows, class_elsewhere=class_elsewhere)
        if grant is not None:
            # The pod may have been changed since the watch showed it; the grant is for what kube-scheduler has.
            entry.spec, entry.refused_by_filter = spec, False
            self._kept.end(spec.pod.uid)
            if not self.is_unused(entry):
                self._shares.reserve(entry, grant, PodStage.RESERVED, self._reserved_until(entry, since))
        elif kept is not None:
            self._kept.put_back(kept)
        return grant

    def _place_over_nominations(
        self, spec: SchedulingSpec, rows: BoolArray, *, class_elsewhere: bool
    ) -> Grant | None:
        """Place a pod where others are nominated: kube-scheduler asks for this one, and nominations are hints."""
        nominated = self._shares.nominated.values()
        hints = [each for each in nominated if self._yields(each, spec, rows)][:_HINTS_MAX]
        holdings = {each.spec.pod.uid: self._snap.release(each.spec.pod.uid) for each in hints}
        grant = self._choice.among(spec, rows, class_elsewhere=class_elsewhere) if hints else None
        if grant is not None:
            self._snap.take(self._placer.holding(asked_of(spec), grant))
        for entry in sorted(hints, key=lambda each: -each.spec.priority):
            try:
                self._snap.take(holdings[entry.spec.pod.uid])
            except NoCapacity:
                self.hold_off(entry)
                self._shares.release(entry)
        if grant is not None:
            self._snap.release(spec.pod.uid)
        return grant

    def _yields(self, hint: PodEntry, spec: SchedulingSpec, rows: BoolArray) -> bool:
        lower = hint.spec.priority <= spec.priority or self._pods.now() >= hint.until - NOMINATED_S + _HINT_S
        return lower and self._offered(hint, rows)

    def confirm(self, entry: PodEntry) -> Grant:
        """Extend a reservation, because kube-scheduler asked about the pod and its place is among the nodes."""
        assert entry.grant is not None
        self._pods.note_asked(entry)
        if entry.stage in RESERVATIONS:
            until = self._reserved_until(entry, self._promised_at(entry))
            entry.stage, entry.until = PodStage.RESERVED, until
            self._shares.nominated.pop(entry.spec.pod.uid, None)
        entry.hold_off_s = 0.0
        return entry.grant

    def is_unused(self, entry: PodEntry) -> bool:
        """Whether kube-scheduler has not bound the pod although it was given a place long ago."""
        return entry.answered_at + RESERVED_S <= self._pods.now()

    def _promised_at(self, entry: PodEntry) -> float:
        """Return since when a place is promised to a pod that is answered now: since its nomination, if any."""
        return entry.until - NOMINATED_S if entry.stage is PodStage.NOMINATED else self._pods.now()

    def _reserved_until(self, entry: PodEntry, promised_at: float) -> float:
        """Return when a place that is answered now is released; the time counts from the first promise."""
        entry.answered_at = min(entry.answered_at, promised_at)
        return entry.answered_at + RESERVED_S

    # -- nominations -------------------------------------------------------------------------------------------

    def nominate(self, entry: PodEntry) -> Grant | None:
        """Reserve the best place in the cluster that a waiting pod's conditions allow."""
        assert entry.stage is PodStage.WAITING
        grant = self._choice.anywhere(entry.spec)
        if grant is not None:
            self._shares.reserve(entry, grant, PodStage.NOMINATED, self._pods.now() + NOMINATED_S)
            self._shares.nominated[entry.spec.pod.uid] = entry
        return grant

    def find(self, entry: PodEntry) -> Grant | None:
        """Return a place that a waiting pod's own conditions allow, without keeping it."""
        return self._choice.anywhere(entry.spec)

    def admit(self, entry: PodEntry, grant: Grant) -> None:
        """Reserve a place for a pod of a queue, whose turn has come; its gate is removed next."""
        assert entry.stage is PodStage.WAITING
        entry.answered_at = FOREVER
        if entry.spec.group is not None:
            self._kept.end(entry.spec.pod.uid)
        self._shares.reserve(entry, grant, PodStage.RESERVED, self._pods.now() + ADMITTED_S)

    def retry_handed(self) -> None:
        """Make kube-scheduler retry pods again that did not come for the place that was freed for them."""
        for uid, entry in tuple(self._handed.items()):
            if entry.stage is not PodStage.RESERVED or not entry.hold_off_s:
                del self._handed[uid]  # it is bound, or kube-scheduler asked about it
            elif self._pods.now() >= entry.held_off_at + entry.hold_off_s:
                self.hold_off(entry)
                self.inherited.append(entry)

    def retry_admitted(self) -> None:
        """Make kube-scheduler retry admitted pods that it gave up on, as when a node's total seemed full."""
        now = self._pods.now()
        for entry in self._pods.in_queues.values():
            waits = entry.stage is PodStage.RESERVED and entry.answered_at == FOREVER and not entry.gated
            long = now >= entry.until - ADMITTED_S + HOLD_OFF_S
            if waits and long and now >= entry.held_off_at + max(entry.hold_off_s, HOLD_OFF_S):
                self.hold_off(entry)
                self.inherited.append(entry)

    def find_among(self, spec: SchedulingSpec, rows: BoolArray | None) -> Grant | None:
        """Choose a place among the nodes that a pod's own conditions allow, and reserve nothing.

        What is kept for its group counts as free.
        """
        kept = None if spec.group is None else self._kept.leave_out(spec.pod.uid)
        try:
            return self._choice.among(spec, rows)
        finally:
            if kept is not None:
                self._kept.put_back(kept)

    def put_back(self, entry: PodEntry) -> None:
        """Release the place of a pod whose gate could not be removed."""
        if entry.stage is PodStage.RESERVED:
            self._shares.release(entry)

    def withdraw(self, entry: PodEntry) -> None:
        """Release the place of a nomination that could not be written, or that kube-scheduler did not use."""
        if entry.stage is PodStage.NOMINATED:
            self.hold_off(entry)
            self._shares.release(entry)

    def hold_off(self, entry: PodEntry) -> None:
        """Do not nominate the pod for a while; for twice as long if nothing was released since the last time."""
        again = entry.held_off_version == self._pods.capacity_version
        entry.hold_off_s = min(HOLD_OFF_MAX_S, 2 * entry.hold_off_s) if again else HOLD_OFF_S
        entry.held_off_at, entry.held_off_version = self._pods.now(), self._pods.capacity_version

    # -- preemption --------------------------------------------------------------------------------------------

    def leaves_for_another(self, uid: str) -> bool:
        """Whether the pod is already being evicted: its share is promised to another pod."""
        return self._kept.is_victim(uid)

    def begin_preemption(
        self,
        spec: SchedulingSpec,
        node: str,
        victims: Iterable[str],
        shrunk: Mapping[str, Grant] = NOBODY_SHRUNK,
    ) -> None:
        """Keep what these pods leave for the pod for which they are evicted, or shrunk to these grants."""
        self._entry_of(spec)
        leaving = list(victims)
        self._kept.begin(spec.pod.uid, node, leaving, self._pods.now(), shrinking=bool(shrunk))
        rest = self._rest(spec, node, leaving, shrunk)
        if rest is not None:
            self._kept.keep_rest(spec.pod.uid, rest)

    def begin_group_preemption(self, places: Mapping[str, Grant], victims: Iterable[str]) -> None:
        """Keep what these pods leave for a group that needs these places, and what it needs besides."""
        leaving = list(victims)
        first = next(iter(places))
        self._kept.begin_together(list(places), leaving, self._pods.now())
        released = [self._snap.holdings[uid] for uid in leaving if uid in self._snap.holdings]
        wanted = [self._placer.holding(asked_of(self._pods[uid].spec), grant) for uid, grant in places.items()]
        for node in {each.node for each in wanted}:
            here = [each for each in wanted if each.node == node]
            self._kept.keep_rest(first, _remaining(first, node, here, released))

    def _rest(
        self, spec: SchedulingSpec, node: str, victims: list[str], shrunk: Mapping[str, Grant]
    ) -> Holding | None:
        """Return what a pod will hold on the node, less what its victims hold of the same GPUs.

        What others are shrunk by is a part of it: it is kept from before it is free.
        """
        smaller = [self._shares.holding(self._pods[uid], grant) for uid, grant in shrunk.items()]
        with Trial(self._snap) as trial:
            released = [self._snap.holdings[uid] for uid in victims if uid in self._snap.holdings]
            for holding in released:
                trial.put(holding.pod, None)
            for holding in smaller:
                trial.put(holding.pod, holding)
            grant = self._choice.among(spec, self._placer.mask([node]))
        if grant is None:
            return None
        return _remaining(spec.pod.uid, node, [self._placer.holding(asked_of(spec), grant)], released)

    def end_shrinking(self, uid: str) -> None:
        """Note that the pods that had to be shrunk for a pod are. If nobody is evicted, too, reserve its place."""
        found = self._kept.under_way(uid)
        if found is not None:
            found.shrinking = False
            if not found.victims:
                self._inherit(uid, found.node)

    def end_preemption(self, uid: str) -> None:
        """Keep nothing more for a pod for which nobody is evicted after all."""
        if self._kept.under_way(uid) is not None:
            self._kept.end(uid)
            self._pods.capacity_version += 1

    def preemption_of(self, uid: str) -> Preemption | None:
        """Return the preemption that is under way for a pod."""
        return self._kept.under_way(uid)

    def on_gone(self, uid: str, holding: Holding | None) -> None:
        """Keep what an evicted pod held; reserve the place once all of them are gone."""
        self._kept.end(uid)
        complete = self._kept.keep(uid, holding)
        if complete is not None:
            self._inherit(*complete)

    def _inherit(self, uid: str, node: str) -> None:
        """Reserve the place of a pod for which others made room."""
        entry = self._pods.get(uid)
        if entry is not None and entry.spec.group is not None:
            self._pods.capacity_version += 1  # it is kept until the group has its turn, and its places together
            self._pods.waiting_version += 1
            return
        if entry is not None:
            self.hand_over(entry, node)
        self._kept.end(uid)

    def hand_over(self, entry: PodEntry, node: str) -> None:
        """Reserve what was freed on a node for the pod that it was freed for, before anybody else asks."""
        if entry.stage not in _BEFORE_BIND:
            return
        entry.answered_at = FOREVER
        with suppress(BadRequest):
            if self.reserve(entry.spec, [node]) is not None:
                self.hold_off(entry)
                self.inherited.append(entry)
                self._handed[entry.spec.pod.uid] = entry
                self._pods.waiting_version += 1

    def recount_kept(self, node: str) -> None:
        """Count what is kept on a node again, because its GPUs changed; nothing is kept on one that is gone."""
        self._kept.recount(node)

    # -- time --------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Drop the reservations whose time is over."""
        now = self._pods.now()
        for uid in self._kept.expired(now):
            self._kept.end(uid)
            self._pods.capacity_version += 1
        for entry in self._pods:
            if entry.until <= now and entry.stage in RESERVATIONS:
                self._expire(entry, now)

    def _expire(self, entry: PodEntry, now: float) -> None:
        last, asked_at = self._pods.last_asked
        if entry.stage is PodStage.NOMINATED and last < entry.number and asked_at > now - PATIENCE_S:
            entry.until = now + NOMINATED_S  # it is not this pod's turn yet
            return
        self.hold_off(entry)
        self._shares.release(entry)


def _remaining(uid: str, node: str, wanted: Iterable[Holding], released: Iterable[Holding]) -> Holding:
    """Return what pods will hold on a node besides what others leave there; a part of a GPU is not all of it."""
    milli, mib = Counter[str](), Counter[str]()
    for sign, holdings in ((1, wanted), (-1, released)):
        for gpu, demand in (each for holding in holdings if holding.node == node for each in holding.demands):
            milli[gpu] += sign * demand.milli
            mib[gpu] += sign * demand.mib
    rest = {gpu: GpuDemand(Milli(max(0, milli[gpu])), Mib(max(0, mib[gpu]))) for gpu in milli}
    return Holding(uid, node, tuple((gpu, each) for gpu, each in rest.items() if each.milli or each.mib))
