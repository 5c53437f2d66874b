"""Following a kind of object: all of them once, then every change, for as long as anybody listens.

Whatever goes wrong on the way (a connection ends, the API server restarts, a version is too old) ends in another
list, and a list replaces all that was known: nothing is ever remembered that the cluster does not have.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, Literal
from urllib.parse import quote

import msgspec

from milligpu.kube.api import Api, Refused, Unanswered
from milligpu.kube.objects import Listed, Thing
from milligpu.model.errors import Unavailable

# The API server ends a watch after this long; without bookmarks, silence for longer means a dead connection.
WATCH_S = 240
SILENCE_S = WATCH_S + 30.0
PAGE = 500
_LIST_TIMEOUT_S = 60.0
# Long enough not to storm an API server that comes back, short enough that nobody notices.
RETRY_S = 0.5

_GONE = 410


@dataclass(frozen=True, slots=True)
class All(Generic[Thing]):
    """Every object there is, in place of all that was known."""

    items: list[Thing]


@dataclass(frozen=True, slots=True)
class Changes(Generic[Thing]):
    """What happened since, in order: objects that came or changed, and objects that went."""

    items: list[tuple[Literal["ADDED", "MODIFIED", "DELETED"], Thing]]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Mark(msgspec.Struct):
    class Meta(msgspec.Struct):
        """Where the watch is."""

        resourceVersion: str = ""

    metadata: Meta = msgspec.field(default_factory=Meta)
    code: int = 0
    message: str = ""


class Watch(Generic[Thing]):
    """Follows one kind, such as `/api/v1/pods`, or those of it that selectors match."""

    def __init__(
        self,
        api: Api,
        path: str,
        kind: type[Thing],
        *,
        labels: str = "",
        fields: str = "",
        retry_s: float = RETRY_S,
    ) -> None:
        """`fields` is a field selector, such as `spec.nodeName=n1`."""
        self._api = api
        self._path = path
        chosen = {"labelSelector": labels, "fieldSelector": fields}
        self._selectors = "".join(f"&{key}={quote(value)}" for key, value in chosen.items() if value)
        self._kind = kind
        self._retry_s = retry_s
        self._decoder = msgspec.json.Decoder(kind)
        self._pages = msgspec.json.Decoder(Listed[kind])
        self._events = msgspec.json.Decoder(_Event)
        self._marks = msgspec.json.Decoder(_Mark)
        self._version = ""

    async def follow(self) -> AsyncIterator[All[Thing] | Changes[Thing]]:
        """All, then changes; all again whenever the thread was lost."""
        while True:
            try:
                yield All(await self._list())
                async for changes in self._changes():
                    yield changes
            except Unavailable:
                await asyncio.sleep(self._retry_s)

    async def _list(self) -> list[Thing]:
        items: list[Thing] = []
        more = ""
        while True:
            at = f"{self._path}?limit={PAGE}{self._selectors}" + (f"&continue={quote(more)}" if more else "")
            page = self._pages.decode(await self._api.get(at, timeout_s=_LIST_TIMEOUT_S))
            items += page.items
            self._version, more = page.metadata.resourceVersion, page.metadata.continue_
            if not more:
                return items

    async def _changes(self) -> AsyncIterator[Changes[Thing]]:
        while True:
            path = (
                f"{self._path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
                f"&resourceVersion={self._version}{self._selectors}"
            )
            try:
                async for lines in self._api.lines(path, SILENCE_S):
                    found = self._read(lines)
                    if found:
                        yield Changes(found)
            except Unanswered:
                # The stream broke: the next one goes on where this one was.
                await asyncio.sleep(self._retry_s)

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
                    raise Refused(f"watch {self._path}", mark.code or _GONE, mark.message)
        return found
