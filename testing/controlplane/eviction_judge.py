"""Finds evictions that cannot help, by the simulated server's objects."""

from collections.abc import Set

from testing.controlplane.queued_pod import SeenPod
from testing.controlplane.server import SimulatedServer


class EvictionJudge:
    """Looks at every choice of victims."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._evicted: dict[str, set[str]] = {}
        """The pods that were last evicted for a pod."""
        self.in_vain: list[str] = []

    def judge(self, pod: SeenPod, node: str, victims: set[str], living: Set[str]) -> None:
        """Check that one GPU has room for the pod without the victims, and not without earlier ones alone."""
        what = f"{sorted(victims)} on {node} are evicted for {pod.name} of {pod.milli}"
        free = self._free_of_gpus(node, victims)
        if max(free, default=0) < pod.milli:
            self.in_vain.append(f"{what}: {free} free")
        ending = self._evicted.get(pod.uid, set()) & living
        free = self._free_of_gpus(node, ending)
        if ending and (victims - ending) & living and max(free, default=0) >= pod.milli:
            self.in_vain.append(f"{what}, where {free} is free once {sorted(ending)} have ended")
        self._evicted[pod.uid] = victims

    def _free_of_gpus(self, node: str, without: set[str]) -> list[int]:
        rest = self._server.used(node, frozenset(without))
        return [
            gpu.allocatable - rest.get(uuid, (0, 0))[0]
            for (where, uuid), gpu in self._server.gpus.items()
            if where == node
        ]
