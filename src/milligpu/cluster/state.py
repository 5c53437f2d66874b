"""Every share that is held, reserved or nominated, and every pod that waits: the only place that gives shares.

Watches fill it and the extender asks it, one call at a time; no I/O. What pods hold follows the cluster: a bound
pod holds what its grant says, even if that differs from what was decided here. Its parts have one concern each:
`pods` all entries, `nodes` what pods' conditions are about, `shares` what is counted on each GPU, `reservations`
the places that are kept for a while, and `binds` the Bindings that were sent.
"""

from collections.abc import Callable
from contextlib import suppress

from milligpu.cluster.binds import PendingBinds
from milligpu.cluster.held_shares import RESERVATIONS, HeldShares
from milligpu.cluster.image_table import ImageTable
from milligpu.cluster.node_constraints import NodeConstraints
from milligpu.cluster.node_table import NodeTable
from milligpu.cluster.observed import ObservedNode, ObservedPod, SchedulingSpec
from milligpu.cluster.place_choice import PlaceChoice
from milligpu.cluster.plain_pods import PlainPod, PlainPods
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.pod_table import PodTable
from milligpu.cluster.reservations import Reservations
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_class import GpuClasses
from milligpu.model.grant import Grant
from milligpu.model.request import PodRequest
from milligpu.placement.decide import Placer


class ClusterState:
    """What every pod of the cluster holds, keeps or waits for."""

    def __init__(self, placer: Placer, now: Callable[[], float]) -> None:
        self.placer = placer
        self.pods = PodTable(now)
        self.nodes = NodeTable(placer)
        self.images = ImageTable()
        self.plain = PlainPods(placer.snapshot)
        self.shares = HeldShares(placer, self.pods, self.plain)
        choice = PlaceChoice(placer, self.nodes, self.shares)
        self.reservations = Reservations(placer, self.pods, self.shares, choice, self._entry)
        self.binds = PendingBinds(self.pods, self.shares, self.reservations, self.nodes, self._entry)
        self.is_protected: Callable[[PodEntry], bool] = lambda _: False
        """Whether a bound pod may not be evicted for others yet; the queue controller sets it."""

    # -- reading -----------------------------------------------------------------------------------------------

    def entry(self, uid: str) -> PodEntry | None:
        return self.pods.get(uid)

    def waiting(self) -> list[PodEntry]:
        """Return the pods that want GPUs and hold none, in the order in which they were first seen."""
        return self.pods.waiting()

    def bound(self) -> list[PodEntry]:
        """Return the pods that are bound to a node."""
        return self.pods.in_stage(PodStage.BOUND)

    def unreadable_grants(self) -> list[PodEntry]:
        """Return the bound pods whose grants cannot be read; every GPU that they may name counts as held."""
        return [each for each in self.pods if each.unreadable is not None]

    def fits(self, spec: SchedulingSpec) -> bool:
        """Whether a waiting pod fits now."""
        if spec.request is None:
            return False
        with suppress(BadRequest):
            return self.placer.fits(spec.request, self.nodes.admitted(spec.constraints))
        return False

    def is_scored(self, spec: SchedulingSpec) -> bool:
        """Whether kube-scheduler should compare nodes for a pod, because the pod prefers some of them."""
        return spec.preferences.scored or self.images.differ(spec.preferences.images)

    def is_nominable(self, spec: SchedulingSpec) -> bool:
        """Whether a node may be chosen for a pod ahead of kube-scheduler."""
        return not (spec.preferences.dependent or spec.is_remote or self.is_scored(spec))

    # -- nodes and classes -------------------------------------------------------------------------------------

    def put_node(self, observed: ObservedNode) -> None:
        """Add or update a node."""
        self.images.put(observed.node.name, observed.images)
        self.pods.capacity_version += self.nodes.put(observed.node.name, observed.facts)
        if self.shares.put_node(observed.node):
            self.reservations.recount_kept(observed.node.name)
            self.pods.capacity_version += 1

    def drop_node(self, name: str) -> None:
        """Remove a node; what pods bound to it hold can go to no other pod."""
        self.nodes.drop(name)
        self.images.drop(name)
        self.shares.drop_node(name)
        self.reservations.recount_kept(name)

    def set_classes(self, classes: GpuClasses) -> bool:
        """Place pods by these classes, and choose again what was reserved by a class; False if none changed."""
        if classes == self.placer.classes:
            return False
        self.placer.set_classes(classes)
        for entry in self.pods:
            request = entry.spec.request
            if entry.stage in RESERVATIONS and request is not None and request.gpu_class is not None:
                self.shares.release(entry)
        self.pods.capacity_version += 1
        return True

    # -- pods --------------------------------------------------------------------------------------------------

    def put_pod(self, observed: ObservedPod) -> None:
        """Add or update a pod."""
        if observed.ended:
            self.drop_pod(observed.uid)
            if observed.spec.group_key is not None and observed.succeeded is not None:
                self.pods.note_succeeded(observed.uid, observed.spec.group_key, observed.succeeded)
        elif observed.node:
            self._put_bound(observed)
        elif observed.spec.wants_gpu:
            self._put_waiting(observed)

    def _put_bound(self, observed: ObservedPod) -> None:
        entry = self._entry(observed.spec)
        entry.seen, entry.resize, entry.leaving = True, observed.resize, observed.leaving
        entry.created, entry.queued = observed.created, False
        entry.started, entry.ends = observed.started, observed.ends
        entry.service = observed.service
        if observed.resize or observed.spec.floor is not None:
            self.pods.resizing[observed.uid] = entry
        if observed.leaving:
            self.pods.leaving[observed.uid] = entry
        if observed.service:
            self.pods.in_services[observed.uid] = entry
        if entry.node == observed.node and entry.stage is not PodStage.WAITING:
            if _is_later(entry.grant, observed.grant):
                return  # out of date: a later grant has been written
            if (entry.grant, entry.unreadable) == (observed.grant, observed.unreadable):
                entry.stage = PodStage.BOUND
                entry.until = FOREVER if entry.next_grant is None else entry.until
                return
        self.shares.release(entry)
        entry.grant, entry.unreadable = observed.grant, observed.unreadable
        self.shares.bind(entry, observed.node, PodStage.BOUND)
        self.shares.drop_reservations_beyond_capacity(observed.node)

    def _put_waiting(self, observed: ObservedPod) -> None:
        entry = self._entry(observed.spec)
        was_out = entry.gated or not entry.seen
        entry.seen, entry.gated = True, observed.gated or observed.leaving
        entry.created, entry.queued = observed.created, observed.queued and not observed.leaving
        changed = entry.spec is not observed.spec
        entry.spec = observed.spec
        self.pods.waiting_version += changed or was_out
        # kube-scheduler clears a nomination that it could not use. One that this instance cleared does not count.
        cleared = bool(entry.nominated) and not observed.nominated
        refused = cleared and not entry.cleared_here and entry.stage is PodStage.NOMINATED
        entry.cleared_here &= not cleared
        entry.nominated, entry.other_reason = observed.nominated, observed.other_reason
        entry.given_up = observed.given_up
        if refused:
            self.reservations.withdraw(entry)
        # A pod keeps the place that was reserved for it while the gate of its queue is being removed.
        if entry.stage in RESERVATIONS and (changed or (entry.gated and not entry.queued)):
            self.shares.release(entry)

    def _entry(self, spec: SchedulingSpec) -> PodEntry:
        entry = self.pods.get(spec.pod.uid)
        if entry is None:
            entry = self.pods.add(spec)
            if spec.request is not None and spec.request.wants_gpu:
                # A GPU class that does not exist is reported when the pod is placed.
                with suppress(BadRequest):
                    self.placer.observe(spec.request)
        return entry

    def put_plain(self, pod: PlainPod) -> None:
        """Add or update a pod that requests no GPU."""
        self.pods.capacity_version += self.plain.put(pod)

    def enter_plain(self, node: str) -> None:
        """Make entries of a node's pods without GPUs, because they may have to leave for another pod's CPU."""
        for plain in self.plain.on_node(node):
            self.plain.drop(plain.pod.uid)
            request = PodRequest(plain.pod, (), cpu_milli=plain.cpu_milli, memory_mib=plain.memory_mib)
            entry = self._entry(SchedulingSpec(plain.pod, request, "", NodeConstraints(), "", plain.priority, -1))
            entry.seen, entry.leaving = True, plain.leaving
            self.shares.bind(entry, node, PodStage.BOUND)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod that ended or was deleted."""
        self.pods.capacity_version += self.plain.drop(uid)
        self.pods.forget_succeeded(uid)
        entry = self.pods.get(uid)
        if entry is not None:
            holding = self.placer.snapshot.holdings.get(uid)
            self.shares.release(entry)
            self.pods.remove(uid)
            self.reservations.on_gone(uid, holding)

    # -- time --------------------------------------------------------------------------------------------------

    def expire(self) -> list[str]:
        """Drop the reservations whose time is over; return the pods that were dropped too.

        kube-scheduler asks about a pod before the watch shows it, or after it is gone.
        """
        self.reservations.expire()
        unknown = [each.spec.pod.uid for each in self.pods if each.stage is PodStage.WAITING and not each.seen]
        for uid in unknown:
            self.drop_pod(uid)
        return unknown


def _is_later(known: Grant | None, seen: Grant | None) -> bool:
    return known is not None and seen is not None and known.generation > seen.generation
