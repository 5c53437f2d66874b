"""How long the leader keeps places for pods that cannot use them, while another pod waits that would fit there."""

from milligpu.cluster.pod_entry import PodEntry, PodStage
from testing.controlplane.invariants import Failure, fits_without, place_of
from testing.controlplane.world import World

_KEPT = frozenset({PodStage.NOMINATED, PodStage.RESERVED})
# 30 s, and a second until the leader looks at the time again.
_RELEASED_S = 31.0


class Promises:
    """Since when each place is kept. A place that is kept again at the next look was kept all the time."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def check(self, world: World, taken: int) -> Failure | None:
        """Check that no place has been kept in vain for more than 30 s."""
        leader, blocked = world.leader, world.blocked()
        entries = [] if leader is None or leader.term is None else [*leader.term.state.pods]
        kept = {place_of(each): each for each in entries if each.stage in _KEPT and each.spec.pod.uid in blocked}
        self._since = {place: self._since.get(place, world.clock.now) for place in kept}
        for place, entry in kept.items():
            for_s = world.clock.now - self._since[place]
            if for_s > _RELEASED_S and fits_without(world, entry):
                return Failure("released", f"kept for {for_s:g} s: {_describe(entry)}", taken)
        return None


def _describe(entry: PodEntry) -> str:
    return f"pod {entry.spec.pod} {entry.stage.value} on {entry.node}"
