"""Deciding ahead of kube-scheduler: waiting pods are promised the place that is best for the whole cluster.

The place is written into the pod's `status.nominatedNodeName`. kube-scheduler then tries that node first and need
not look at any other: at 5,000 nodes this is most of its work. The same write wakes a pod that it had given up on
until something changes. It is a hint and no more: a pod that was not nominated, or cannot use the node, goes the
ordinary way. The write is one more request per pod, so it is left off while binds pile up at the API server: then
kube-scheduler is not what all wait for.
"""

import asyncio
from collections.abc import Callable, Collection

import structlog

from milligpu.kube.api import MERGE_PATCH, METADATA_ONLY, Api
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.scheduler.books import Books, Entry, Stage

# A pod whose turn comes at once needs no nomination: the first to come, and the next in line of a burst.
HEAD_START_S = 0.03
NEXT_IN_LINE = 16
# The line stands still: there is no next.
PATIENCE_S = 1.0
# As many as keep the API server busy beside the binds.
IN_FLIGHT = 16
# Thousands may wait: they are put in order once for so long, and not for each of them.
PASS_S = 0.25
# kube-scheduler knows more about the pod than we do; ask again when the cluster has changed somewhat.
REFUSED_S = 30.0

log = structlog.get_logger()


class Nominator:
    """Works whenever there is news."""

    def __init__(
        self,
        api: Api,
        books: Books,
        schedulers: Collection[str],
        busy: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`schedulers` are the names of those that ask us; other schedulers' pods are not ours to nominate.

        `busy` says whether the API server has enough to do.
        """
        self._busy = busy
        self._api = api
        self._books = books
        self._schedulers = frozenset(schedulers)
        self._now = now
        self._news = asyncio.Event()
        self._patches: set[asyncio.Task[None]] = set()
        self._failed: set[int] = set()
        self._failed_at = -1
        self._looked_at = (-1, -1)
        self.stuck: dict[str, Entry] = {}
        """Pods that fit nowhere, by uid: somebody should tell them why."""

    def notice(self) -> None:
        """Something happened: look if anybody waits anew, or something was freed."""
        if self._looked_at != (self._books.came, self._books.freed):
            self._news.set()

    def look_again(self) -> None:
        """Time went by."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._looked_at = self._books.came, self._books.freed
            if await self._nominate_all():
                await asyncio.sleep(HEAD_START_S)
                self._news.set()

    async def _nominate_all(self) -> bool:
        """Go through those who wait, by priority; True when some were too young."""
        waiting, until = self._books.waiting(), self._now() + PASS_S
        young = self._busy() and bool(waiting)
        if young:
            # Thousands wait in a burst, and kube-scheduler comes to them by itself.
            waiting = [each for each in waiting if each.turned_away]
        for entry in sorted(waiting, key=lambda each: -each.wish.priority):
            while len(self._patches) >= IN_FLIGHT:
                await asyncio.wait(self._patches, return_when=asyncio.FIRST_COMPLETED)
            if self._now() >= until and self._news.is_set():
                return False  # others may come first by now
            young |= self._look_at(entry)
        return young

    def _look_at(self, entry: Entry) -> bool:
        """Nominate it if that can be done now; True when it is too young."""
        now = self._now()
        if self._failed_at != self._books.freed:
            self._failed_at = self._books.freed
            self._failed.clear()
            self.stuck.clear()
        if entry.stage is not Stage.WAITING or self._books.entry(entry.wish.pod.uid) is not entry:
            return False  # kube-scheduler was faster, or it is gone
        if entry.wish.shape in self._failed:
            self.stuck.setdefault(entry.wish.pod.uid, entry)
        elif self._ours(entry, now):
            if self._soon(entry, now):
                return True
            self._nominate(entry)
        return False

    def _ours(self, entry: Entry, now: float) -> bool:
        return (
            entry.seen
            and not entry.gated
            and entry.wish.scheduler in self._schedulers
            and entry.refused_at < now - REFUSED_S
        )

    def _soon(self, entry: Entry, now: float) -> bool:
        if entry.since > now - HEAD_START_S or (self._busy() and not entry.turned_away):
            return True
        frontier, moved_at = self._books.frontier
        return frontier < entry.number <= frontier + NEXT_IN_LINE and moved_at > now - PATIENCE_S

    def _nominate(self, entry: Entry) -> None:
        try:
            grant = self._books.nominate(entry)
        except BadRequest:
            grant = None  # it says what is wrong with it when it is explained
        if grant is None:
            self._failed.add(entry.wish.shape)
            self.stuck.setdefault(entry.wish.pod.uid, entry)
            return
        task = asyncio.create_task(self._patch(entry, grant.node))
        self._patches.add(task)
        task.add_done_callback(self._patches.discard)

    async def _patch(self, entry: Entry, node: str) -> None:
        try:
            if entry.nominated == node:
                # The same again would change nothing, and so wake nobody.
                await self._write(entry, "")
            if entry.stage is Stage.NOMINATED:
                await self._write(entry, node)
        except Unavailable as error:
            log.info("nomination not written", pod=str(entry.wish.pod), node=node, error=error.message)

    async def _write(self, entry: Entry, node: str) -> None:
        pod = entry.wish.pod
        await self._api.send(
            "PATCH",
            f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status",
            {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}},
            kind=MERGE_PATCH,
            accept=METADATA_ONLY,
        )
