"""Shares of evicted pods, kept for the pod that they were evicted for: no third pod takes a part of them.

What the pod needs besides them, because it is larger than its victims, is kept from the beginning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from milligpu.placement.snapshot import Holding, Snapshot

# As long as most pods take to end; kube-scheduler asks again if it was too short.
KEPT_S = 60.0


@dataclass(slots=True)
class Preemption:
    """One pod for which others are evicted."""

    node: str
    """Where; empty for a group, whose pods may be on several nodes."""
    victims: set[str]
    """The pods that have not ended yet."""
    until: float
    shrinking: bool = False
    """Whether pods are being shrunk for it, before any is evicted."""
    kept: dict[str, Holding] = field(default_factory=dict[str, Holding])
    """The rest, and what victims that are gone held, by the name under which it counts."""


class KeptShares:
    """The preemptions under way, by the uid of the pod for which others leave."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snap = snapshot
        self._under_way: dict[str, Preemption] = {}

    def begin(self, uid: str, node: str, victims: Iterable[str], now: float, *, shrinking: bool = False) -> None:
        """Keep what these pods leave for the pod with this uid."""
        self.end(uid)
        self._under_way[uid] = Preemption(node, set(victims), now + KEPT_S, shrinking)

    def begin_together(self, uids: Sequence[str], victims: Iterable[str], now: float) -> None:
        """Keep what these pods leave for a group, until one of its pods has its place or is gone."""
        for uid in uids:
            self.end(uid)
        self._under_way |= dict.fromkeys(uids, Preemption("", set(victims), now + KEPT_S))

    def under_way(self, uid: str) -> Preemption | None:
        return self._under_way.get(uid)

    def keep_rest(self, uid: str, rest: Holding) -> None:
        """Keep what the pod needs besides what its victims leave."""
        kept = replace(rest, pod=f"rest on {rest.node} kept for {uid}")
        self._under_way[uid].kept[kept.pod] = kept
        self._count(kept)

    def keep(self, victim: str, holding: Holding | None) -> tuple[str, str] | None:
        """Note that a pod is gone. After the last victim, return the uid and node of the pod to place."""
        for uid, each in self._under_way.items():
            if victim in each.victims:
                each.victims.discard(victim)
                if holding is not None:
                    kept = replace(holding, pod=f"{victim} kept for {uid}")
                    each.kept[kept.pod] = kept
                    self._count(kept)
                return None if each.victims else (uid, each.node)
        return None

    def is_victim(self, uid: str) -> bool:
        return any(uid in each.victims for each in self._under_way.values())

    def end(self, uid: str) -> None:
        """Stop keeping anything for the pod."""
        found = self._under_way.get(uid)
        if found is not None:
            self._leave_out(found)
            self._under_way = {each: one for each, one in self._under_way.items() if one is not found}

    def leave_out(self, uid: str) -> Preemption | None:
        """Leave out what is kept for the pod while a place for it is searched; `put_back` counts it again."""
        found = self._under_way.get(uid)
        if found is not None:
            self._leave_out(found)
        return found

    def put_back(self, found: Preemption) -> None:
        for holding in found.kept.values():
            self._count(holding)

    def recount(self, node: str) -> None:
        """Count what is kept on a node again after a change of its GPUs; end all of it if the node is gone."""
        for uid, each in tuple(self._under_way.items()):
            if node in self._snap.nodes:
                self.put_back(each)
            elif node in {each.node, *(holding.node for holding in each.kept.values())}:
                self.end(uid)

    def expired(self, now: float) -> list[str]:
        return [uid for uid, each in self._under_way.items() if each.until <= now]

    def _leave_out(self, found: Preemption) -> None:
        for name in found.kept:
            if name in self._snap.holdings:
                self._snap.release(name)

    def _count(self, holding: Holding) -> None:
        """Count a kept holding, unless its node or one of its GPUs is gone."""
        there = all((holding.node, uuid) in self._snap.cell_of for uuid, _ in holding.demands)
        if holding.node in self._snap.nodes and there and holding.pod not in self._snap.holdings:
            self._snap.take(holding, force=True)
