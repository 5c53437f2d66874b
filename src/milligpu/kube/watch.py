"""Watches: all objects of a kind once, then every change.

Any failure (a connection ends, the API server restarts, a version is too old) leads to another list, which replaces
everything that was known. So nothing is remembered that the cluster no longer has.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias
from urllib.parse import quote

import msgspec
import structlog

from milligpu.kube.api import ApiClient, ApiRefused, ApiUnanswered
from milligpu.kube.backoff import RETRY_S, Backoff
from milligpu.model.errors import Unavailable
from milligpu.wire.kubernetes import ObjectList, Thing

# The API server ends a watch after this long.
WATCH_S = 240
# The API server sends a bookmark about every minute, so longer silence means a dead connection.
SILENCE_S = 90.0
PAGE = 500
# A cluster without a CRD refuses the watch; this is how soon a new one is found.
ABSENT_S = 10.0
_LIST_TIMEOUT_S = 60.0

_GONE = 410
_FORBIDDEN = 403
_NOT_THERE = frozenset({_FORBIDDEN, 404})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Relisted(Generic[Thing]):
    """All objects; they replace everything that was known."""

    items: list[Thing]


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Thing]):
    """Some objects of a list that is under way; the list may still fail, and begin again."""

    items: list[Thing]
    first: bool
    """Whether a list begins with it; pages before it are of a list that failed, or of an earlier one."""


@dataclass(frozen=True, slots=True)
class ListEnded:
    """The list is complete: these objects, of all its pages, replace everything that was known."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Changed(Generic[Thing]):
    """Changes in order: objects that were added, modified or deleted."""

    items: list[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Thing]]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Mark(msgspec.Struct):
    class Meta(msgspec.Struct):
        resourceVersion: str = ""

    metadata: Meta = msgspec.field(default_factory=Meta)
    code: int = 0
    message: str = ""


class Watch(Generic[Thing]):
    """Follows the objects of one path, such as `/api/v1/pods`, or those that selectors match."""

    def __init__(
        self,
        api: ApiClient,
        path: str,
        kind: type[Thing],
        *,
        labels: str = "",
        fields: str = "",
        retry_s: float = RETRY_S,
        on_list: Callable[[], None] = lambda: None,
        optional: bool = False,
        cached: bool = False,
    ) -> None:
        """`fields` is a field selector, such as `spec.nodeName=n1`; `on_list` is called when a list begins.

        `cached`: lists come from the API server's cache, so that thousands of agents do not load etcd. The first
        one may be some seconds old, which the watch makes up for; others are never older than what was seen.
        `optional`: a cluster that does not know this kind of object, or does not let us see it, has none of it.
        """
        self._on_list = on_list
        self._optional = optional
        self._cached = cached
        self._api = api
        self._path = path
        chosen = {"labelSelector": labels, "fieldSelector": fields}
        self._selectors = "".join(f"&{key}={quote(value)}" for key, value in chosen.items() if value)
        self._kind = kind
        self._backoff = Backoff(retry_s)
        self._decoder = msgspec.json.Decoder(kind)
        self._pages = msgspec.json.Decoder(ObjectList[kind])
        self._events = msgspec.json.Decoder(_Event)
        self._marks = msgspec.json.Decoder(_Mark)
        self._version = ""
        self._seen = "0"
        """The version of a list from the cache; none for a list from etcd."""

    async def follow(self) -> AsyncIterator[Relisted[Thing] | Changed[Thing]]:
        """Yield all objects, then changes; all objects again after a failure."""
        listed: list[Thing] = []
        async with aclosing(self.follow_pages()) as everything:
            async for news in everything:
                match news:
                    case ListPage(items, first):
                        listed = [*items] if first else listed + items
                    case ListEnded():
                        yield Relisted(listed)
                        listed = []
                    case Changed():
                        yield news

    async def follow_pages(self) -> AsyncGenerator[ListPage[Thing] | ListEnded | Changed[Thing]]:
        """Yield all objects page by page, then changes, so that a reader need not hold a long list at once."""
        while True:
            try:
                listed: list[str] = []
                first = True
                async with aclosing(self._list()) as pages:
                    async for page in pages:
                        listed += [each.metadata.uid for each in page]
                        yield ListPage(page, first)
                        first = False
                self._backoff.reset()
                yield ListEnded(frozenset(listed))
                async for changes in self._changes():
                    yield changes
            except Unavailable as error:
                # A version that is too old, or newer than what this API server has: etcd knows.
                refused = isinstance(error, ApiRefused)
                self._seen = "" if refused or not self._version else self._version
                if self._optional and isinstance(error, ApiRefused) and error.status in _NOT_THERE:
                    if error.status == _FORBIDDEN:
                        log.warning("Not allowed to list objects, going on without them", error=error.message)
                    yield ListEnded(frozenset())
                await asyncio.sleep(self._backoff.after(error))

    async def _list(self) -> AsyncGenerator[list[Thing]]:
        """Yield the pages of a list; while one is read, the API server makes the next."""
        self._on_list()
        first = f"{self._path}?limit={PAGE}{self._selectors}"
        seen = f"&resourceVersion={self._seen}&resourceVersionMatch=NotOlderThan"
        coming = asyncio.create_task(self._get_page(first + seen if self._cached and self._seen else first))
        try:
            while True:
                page = self._pages.decode(await coming)
                self._version, more = page.metadata.resourceVersion, page.metadata.continue_
                if more:
                    coming = asyncio.create_task(self._get_page(f"{first}&continue={quote(more)}"))
                yield page.items
                if not more:
                    return
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _get_page(self, path: str) -> bytes:
        return await self._api.get(path, timeout_s=_LIST_TIMEOUT_S)

    async def _changes(self) -> AsyncIterator[Changed[Thing]]:
        while True:
            path = (
                f"{self._path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
                f"&resourceVersion={self._version}{self._selectors}"
            )
            try:
                async for lines in self._api.lines(path, SILENCE_S):
                    self._backoff.reset()
                    found = self._read(lines)
                    if found:
                        yield Changed(found)
            except ApiUnanswered as error:
                # The stream broke; the next one continues from the same version.
                await asyncio.sleep(self._backoff.after(error))

    def _read(self, lines: list[bytes]) -> list[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Thing]]:
        found: list[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Thing]] = []
        for line in lines:
            event = self._events.decode(line)
            match event.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    thing = self._decoder.decode(event.object)
                    self._version = thing.metadata.resourceVersion
                    found.append((event.type, thing))
                case "BOOKMARK":
                    self._version = self._marks.decode(event.object).metadata.resourceVersion
                case _:
                    mark = self._marks.decode(event.object)
                    raise ApiRefused(f"watch {self._path}", mark.code or _GONE, mark.message)
        return found


class SharedWatch(Generic[Thing]):
    """One watch for several readers in one process; each sees all objects first and then every change."""

    def __init__(self, watch: Watch[Thing]) -> None:
        self._watch = watch
        self._known: dict[str, Thing] | None = None
        self._readers: set[asyncio.Queue[Relisted[Thing] | Changed[Thing]]] = set()

    async def run(self) -> None:
        """Follow the objects, until cancelled."""
        async for news in self._watch.follow():
            self._remember(news)
            for reader in self._readers:
                reader.put_nowait(news)

    def _remember(self, news: Relisted[Thing] | Changed[Thing]) -> None:
        self._known = _known_after(self._known or {}, news)

    async def follow(self) -> AsyncIterator[Relisted[Thing] | Changed[Thing]]:
        """Yield all objects as soon as they are known, then changes, as `Watch.follow` does."""
        reader = asyncio.Queue[Relisted[Thing] | Changed[Thing]]()
        self._readers.add(reader)
        if self._known is not None:
            reader.put_nowait(Relisted(list(self._known.values())))
        try:
            while True:
                yield await reader.get()
        finally:
            self._readers.discard(reader)


Followed: TypeAlias = Watch[Thing] | SharedWatch[Thing]


async def follow_all(watch: Followed[Thing]) -> AsyncIterator[list[Thing]]:
    """Yield all objects that there are now, after every change."""
    known: dict[str, Thing] = {}
    async for news in watch.follow():
        known = _known_after(known, news)
        yield list(known.values())


def _known_after(known: dict[str, Thing], news: Relisted[Thing] | Changed[Thing]) -> dict[str, Thing]:
    """The objects by uid after some news; for changes it is the same mapping."""
    if isinstance(news, Relisted):
        return {thing.metadata.uid: thing for thing in news.items}
    for kind, thing in news.items:
        if kind == "DELETED":
            known.pop(thing.metadata.uid, None)
        else:
            known[thing.metadata.uid] = thing
    return known
