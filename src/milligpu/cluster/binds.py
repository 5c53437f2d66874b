"""Binds under way, and binds without an answer: their places are kept until it is known what became of them."""

from collections.abc import Callable, Collection, Iterable

from milligpu.cluster.held_shares import HeldShares
from milligpu.cluster.node_table import NodeTable
from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import FOREVER, PodEntry, PodStage
from milligpu.cluster.pod_table import PodTable
from milligpu.cluster.reservations import Reservations
from milligpu.model.errors import NoCapacity
from milligpu.model.grant import Grant

# The API server may carry out a request without an answer while it keeps the request: a minute by default.
DOUBT_S = 60.0


class PendingBinds:
    """What is known about Bindings that were sent."""

    def __init__(
        self,
        pods: PodTable,
        shares: HeldShares,
        reservations: Reservations,
        nodes: NodeTable,
        entry_of: Callable[[SchedulingSpec], PodEntry],
    ) -> None:
        self._pods = pods
        self._shares = shares
        self._reservations = reservations
        self._nodes = nodes
        self._entry_of = entry_of

    def begin(self, spec: SchedulingSpec, node: str) -> Grant | None:
        """Return the grant to bind with, chosen now if nothing is reserved, as after a restart. None for no GPU."""
        if not spec.wants_gpu:
            return None
        entry = self._entry_of(spec)
        if entry.stage is PodStage.BOUND:
            raise NoCapacity(f"pod {spec.pod} is already on {entry.node}")
        places = self._places(spec, node)
        if entry.stage is PodStage.BINDING or (entry.stage is PodStage.BIND_UNKNOWN and entry.node not in places):
            raise NoCapacity(f"pod {spec.pod}: the outcome of an earlier bind is unknown")
        entry.answered_at = FOREVER
        reserved = entry.node in places and entry.grant is not None
        if not reserved and self._reservations.move(spec, places) is None:
            where = "no GPU server has room" if spec.is_remote else f"node {node} has no room left"
            raise NoCapacity(f"{where} for pod {spec.pod}")
        entry.answered_at = FOREVER
        entry.stage, entry.until = PodStage.BINDING, FOREVER
        self._shares.nominated.pop(spec.pod.uid, None)
        return entry.grant

    def _places(self, spec: SchedulingSpec, node: str) -> Collection[str]:
        """Return where the pod's GPUs may be if it is bound to this node."""
        return self._nodes.admitted(spec.constraints) if spec.is_remote else [node]

    def end(self, uid: str, *, bound: bool) -> None:
        """Note the API server's answer to a Binding."""
        entry = self._pods.get(uid)
        if entry is None or not (entry.stage is PodStage.BINDING or entry.stage is PodStage.BIND_UNKNOWN):
            return  # the watch showed it first
        if bound:
            entry.stage, entry.until = PodStage.BOUND, FOREVER
            # If the watch never shows the pod, the next list finds that it is gone.
            entry.seen = True
        elif entry.doubt_until > self._pods.now():
            entry.stage = PodStage.BIND_UNKNOWN
        else:
            self._shares.release(entry)

    def mark_unknown(self, uid: str) -> None:
        """Keep the place of a bind without an answer until the pod has been read again."""
        entry = self._pods.get(uid)
        if entry is not None and entry.stage is PodStage.BINDING:
            entry.stage, entry.doubt_until = PodStage.BIND_UNKNOWN, self._pods.now() + DOUBT_S

    def confirm_unbound(self, uid: str) -> None:
        """Release the place of a pod that was read and has no node, once no earlier bind can be carried out."""
        entry = self._pods.get(uid)
        if entry is not None and entry.stage is PodStage.BIND_UNKNOWN and entry.doubt_until <= self._pods.now():
            self._shares.release(entry)

    def carry_over(self, entries: Iterable[PodEntry]) -> None:
        """Keep the places of an earlier term's binds without an answer; they may still be carried out."""
        for old in entries:
            entry = self._entry_of(old.spec)
            entry.grant, entry.doubt_until = old.grant, old.doubt_until
            self._shares.bind(entry, old.node, PodStage.BIND_UNKNOWN)

    def unknown(self) -> list[PodEntry]:
        """Return the pods whose bind had no answer; each has to be read again."""
        return self._pods.in_stage(PodStage.BIND_UNKNOWN)
