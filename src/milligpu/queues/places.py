"""Where a waiting pod goes."""

from milligpu.model.grant import Grant
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import BoolArray
from milligpu.queues.order import QueuedPod


class PlaceFinder:
    """Where a pod goes, and what it holds then: by its request alone. A cluster has more conditions."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer

    def place(self, pod: QueuedPod) -> Grant | None:
        """Choose a place that is free now."""
        return self._placer.place(pod.request)

    def hold(self, pod: QueuedPod, grant: Grant) -> None:
        """Count the place of a pod that starts."""
        self._placer.snapshot.take(self._placer.holding(pod.request, grant), force=True)

    def rows(self, pod: QueuedPod) -> BoolArray | None:  # noqa: ARG002 - requests alone exclude no node
        """The rows of the nodes on which the pod may be; None for all."""
        return None
