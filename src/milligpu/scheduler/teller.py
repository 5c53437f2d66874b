"""Telling people: an event on every pod that waits, with the same line that `milligpu explain` prints."""

import asyncio
from collections.abc import Callable

import structlog

from milligpu.kube.api import Api, Refused
from milligpu.kube.events import pod_event
from milligpu.model.errors import Unavailable
from milligpu.scheduler.books import Books, Entry, Stage
from milligpu.scheduler.explain import REASON, gradually
from milligpu.scheduler.nominator import Nominator

CONTROLLER = "milligpu.dev/scheduler"
# Most pods that do not fit at once fit in a moment: nobody needs to read about it.
_PATIENCE_S = 1.0
# An event about every change of a busy cluster's numbers would drown the rest.
_AGAIN_S = 60.0
# A thousand waiting pods are told within a minute, at a rate that leaves the API server to the binds.
_EVERY_S = 0.05
# At 5,000 nodes a text is half a second of work: while it is nearly true, others of the same shape get it, too.
_STALE_S = 30.0
_TEXTS_MAX = 1024
# Three quarters of the processor are for others while one is worked out.
_REST = 3.0

log = structlog.get_logger()


class Teller:
    """Explains what the nominator could not place."""

    def __init__(
        self, api: Api, books: Books, nominator: Nominator, identity: str, now: Callable[[], float]
    ) -> None:
        self._api = api
        self._books = books
        self._nominator = nominator
        self._identity = identity
        self._now = now
        self._texts: dict[int, tuple[str, float]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for entry in list(self._nominator.stuck.values()):
                if self._due(entry):
                    await self._tell(entry)
                    await asyncio.sleep(_EVERY_S)
            await asyncio.sleep(_PATIENCE_S / 2)

    def _due(self, entry: Entry) -> bool:
        now = self._now()
        waits = entry.stage is Stage.WAITING and entry.seen and not entry.gated
        return waits and entry.since <= now - _PATIENCE_S and entry.told_at <= now - _AGAIN_S

    async def _tell(self, entry: Entry) -> None:
        text = await self._text(entry)
        if text is None:
            return
        entry.told_at = self._now()
        if text == entry.told:
            return
        try:
            pod = entry.wish.pod
            reporter = (CONTROLLER, self._identity)
            event = pod_event((pod.namespace, pod.name, pod.uid), REASON, "Scheduling", text, reporter=reporter)
            await self._api.send("POST", *event)
            entry.told = text
        except Refused as error:
            log.info("event refused", pod=str(entry.wish.pod), error=error.message)
        except Unavailable:
            entry.told_at = -_AGAIN_S

    async def _text(self, entry: Entry) -> str | None:
        """Worked out once a while for all pods that ask for the same."""
        shape, now = entry.wish.shape, self._now()
        text, made_at = self._texts.get(shape, ("", -_STALE_S))
        if made_at > now - _STALE_S:
            return text
        text = await self._explained(entry)
        if text is not None:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[shape] = text, now
        return text

    async def _explained(self, entry: Entry) -> str | None:
        """Step by step, so that binds go on meanwhile; None when nodes came or went."""
        snapshot = self._books.placer.snapshot
        layout, steps = snapshot.layout, gradually(self._books, entry.wish)
        while snapshot.layout == layout:
            start = self._now()
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            await asyncio.sleep(_REST * (self._now() - start))
        return None
