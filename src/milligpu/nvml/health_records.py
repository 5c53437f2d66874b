"""What is remembered of each GPU's health, by UUID; the rule is in `health`."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from milligpu.model.gpu import Gpu
from milligpu.nvml.health import GpuHealth, HealthHistory, assess, note_reading, note_xid
from milligpu.nvml.readings import GpuVitals, LostGpu, XidEvent


class HealthRecords:
    """The history of each GPU, from what the driver reports and what is read."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._records: dict[str, HealthHistory] = {}

    def note(self, reported: Iterable[XidEvent], seen: Iterable[GpuVitals | LostGpu]) -> None:
        """Add XIDs together with a reading that came after them: does the driver ask for a reset?"""
        for event in reported:
            self._records[event.uuid] = note_xid(self._of(event.uuid), event.xid, self._now())
        for each in seen:
            if each.uuid:
                self._records[each.uuid] = note_reading(self._of(each.uuid), each, self._now())

    def clear(self, uuid: str) -> None:
        """Forget the XID of a GPU. Other causes end only when a reading shows it, so no broken GPU is offered."""
        self._records[uuid] = replace(self._of(uuid), xid=None, reset_seen=False)

    def health(self, uuid: str) -> GpuHealth:
        return assess(self._of(uuid))

    def apply(self, gpu: Gpu) -> Gpu:
        """The GPU with its present health."""
        health = self.health(gpu.uuid)
        return replace(gpu, state=health.state, message=health.message)

    def _of(self, uuid: str) -> HealthHistory:
        return self._records.get(uuid, HealthHistory())
