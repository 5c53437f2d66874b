"""Events on waiting pods, with the same line that `milligpu explain` prints."""

import asyncio
from collections.abc import Callable

import structlog

from milligpu.cluster.explain import explain_waiting_in_steps
from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.kube.events import EventRecorder, PodEvent
from milligpu.model.reasons import EventReason
from milligpu.scheduler.nominator import Nominator

_TOPIC = "waiting"
# Most pods that do not fit at once fit a moment later, and need no event.
_PATIENCE_S = 1.0
# An event about every change of a busy cluster's numbers would drown the rest.
_AGAIN_S = 60.0
# At 5,000 nodes an explanation takes half a second, so pods of the same shape share one that is nearly true.
_STALE_S = 30.0
_TEXTS_MAX = 1024
# An explanation takes at most a quarter of the processor.
_REST = 3.0

log = structlog.get_logger()


class WaitingEvents:
    """Posts an event on each waiting pod that says why no GPU fits."""

    def __init__(
        self, events: EventRecorder, state: ClusterState, nominator: Nominator, now: Callable[[], float]
    ) -> None:
        self._events = events
        self._state = state
        self._nominator = nominator
        self._now = now
        self._texts: dict[int, tuple[str, float]] = {}

    async def run(self) -> None:
        while True:
            for entry in list(self._nominator.unplaceable.values()):
                if self._due(entry):
                    await self._post(entry)
            await asyncio.sleep(_PATIENCE_S / 2)

    def forget_classes(self) -> None:
        """Post again about pods that name a class, because the classes changed."""
        for entry in self._state.waiting():
            if entry.spec.request is not None and entry.spec.request.gpu_class is not None:
                self._texts.pop(entry.spec.shape, None)
                self._events.forget(entry.spec.pod.uid, _TOPIC)

    def _due(self, entry: PodEntry) -> bool:
        waits = entry.stage is PodStage.WAITING and entry.seen and not entry.gated
        long = entry.since <= self._now() - _PATIENCE_S
        return waits and long and self._events.is_due(entry.spec.pod.uid, _TOPIC, _AGAIN_S)

    async def _post(self, entry: PodEntry) -> None:
        text = await self._text(entry)
        if text is not None and self._state.entry(entry.spec.pod.uid) is entry:
            event = PodEvent(entry.spec.pod, EventReason.GPU_UNAVAILABLE, "Scheduling", text)
            if self._events.record(event, topic=_TOPIC, again_s=_AGAIN_S):
                log.info("Pod waits", pod=str(event.pod), message=text, uid=event.uid)
            # The pod may have been placed before its turn in a long queue of events.
            await self._events.drained()

    async def _text(self, entry: PodEntry) -> str | None:
        """Explain once for all pods of one shape."""
        shape, now = entry.spec.shape, self._now()
        text, made_at = self._texts.get(shape, ("", -_STALE_S))
        if made_at > now - _STALE_S:
            return text
        text = await self._explained(entry)
        if text is not None:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[shape] = text, now
        return text

    async def _explained(self, entry: PodEntry) -> str | None:
        """Explain in steps, so that binds go on; None if nodes were added or removed meanwhile."""
        snapshot = self._state.placer.snapshot
        rows, steps = snapshot.rows_version, explain_waiting_in_steps(self._state, entry.spec)
        while snapshot.rows_version == rows:
            start = self._now()
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            await asyncio.sleep(_REST * (self._now() - start))
        return None
