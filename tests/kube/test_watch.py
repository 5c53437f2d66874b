"""A shared watch: each reader sees all objects first, then every change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from milligpu.kube.api import ApiClient, ApiNotSent, ApiRefused
from milligpu.kube.watch import Changed, ListEnded, ListPage, Relisted, SharedWatch, Watch
from milligpu.wire.kubernetes import KubeNode, ObjectMeta

News = Relisted[KubeNode] | Changed[KubeNode]


def node(name: str, version: str = "1") -> KubeNode:
    return KubeNode(ObjectMeta(name=name, uid=f"uid-{name}", resourceVersion=version))


class Source:
    """A watch that yields what the test puts in."""

    def __init__(self) -> None:
        self.queue = asyncio.Queue[News]()

    async def follow(self) -> AsyncIterator[News]:
        while True:
            yield await self.queue.get()


async def reader(shared: SharedWatch[KubeNode], count: int) -> list[tuple[str, list[str]]]:
    """The first few things that a reader sees."""
    found: list[tuple[str, list[str]]] = []
    async for news in shared.follow():
        if isinstance(news, Relisted):
            found.append(("all", [each.metadata.name for each in news.items]))
        else:
            found.append(("changed", [f"{kind} {each.metadata.name}" for kind, each in news.items]))
        if len(found) == count:
            break
    return found


def test_a_reader_that_comes_late_sees_what_is_there_now() -> None:
    async def run() -> tuple[Any, Any]:
        source = Source()
        shared = SharedWatch(cast(Watch[KubeNode], source))
        task = asyncio.create_task(shared.run())
        early = asyncio.create_task(reader(shared, 3))
        await asyncio.sleep(0.01)
        source.queue.put_nowait(Relisted([node("a"), node("b")]))
        source.queue.put_nowait(Changed([("DELETED", node("a")), ("ADDED", node("c"))]))
        await asyncio.sleep(0.01)
        late = asyncio.create_task(reader(shared, 2))
        await asyncio.sleep(0.01)
        source.queue.put_nowait(Changed([("MODIFIED", node("b", "2"))]))
        found = await asyncio.wait_for(asyncio.gather(early, late), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found[0], found[1]

    early, late = asyncio.run(run())
    assert early == [
        ("all", ["a", "b"]),
        ("changed", ["DELETED a", "ADDED c"]),
        ("changed", ["MODIFIED b"]),
    ]
    assert late == [("all", ["b", "c"]), ("changed", ["MODIFIED b"])]


class Listing:
    """An API server that answers lists as the test says, and whose watches end with 410."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []

    async def get(self, path: str, timeout_s: float = 0.0) -> bytes:
        del timeout_s
        self.paths.append(path)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return b'{"metadata":{"resourceVersion":"7"},"items":[]}'

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        del path, silence_s
        yield [b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}']
        yield [b'{"type":"ERROR","object":{"code":410,"message":"too old"}}']


def lists(api: Listing, count: int, *, cached: bool) -> list[str]:
    """The versions that the first lists of a watch ask for; empty for the newest, from etcd."""

    async def run() -> None:
        watch = Watch(cast(ApiClient, api), "/api/v1/nodes", KubeNode, retry_s=0.001, cached=cached)
        async for _ in watch.follow():
            if len(api.paths) == count:
                return

    asyncio.run(asyncio.wait_for(run(), 10))
    return [path.partition("resourceVersion=")[2].partition("&")[0] for path in api.paths]


def test_agents_list_from_the_cache_and_from_etcd_when_their_version_is_too_old() -> None:
    assert lists(Listing(), 2, cached=True) == ["0", ""]
    assert lists(Listing(), 2, cached=False) == ["", ""]


def test_a_list_from_the_cache_is_never_older_than_what_was_seen() -> None:
    unsent = ApiNotSent("connection refused")

    assert lists(Listing(None, unsent, unsent), 4, cached=True) == ["0", "", "9", "9"]


def test_a_version_that_the_api_server_does_not_have_yet_is_read_from_etcd() -> None:
    assert lists(Listing(ApiRefused("list", 504, "too large resource version")), 2, cached=True) == ["0", ""]


class Pages:
    """An API server whose lists have pages; a page may fail, and the next one waits until the test lets it go."""

    def __init__(self, *pages: list[str] | Exception) -> None:
        self.pages = list(pages)
        self.asked: list[str] = []

    async def get(self, path: str, timeout_s: float = 0.0) -> bytes:
        del timeout_s
        self.asked.append(path.partition("continue=")[2])
        await asyncio.sleep(0)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        more = f',"continue":"{len(self.asked)}"' if self.pages else ""
        items = ",".join(f'{{"metadata":{{"name":"{name}","uid":"uid-{name}"}}}}' for name in page)
        return f'{{"metadata":{{"resourceVersion":"7"{more}}},"items":[{items}]}}'.encode()

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        del path, silence_s
        await asyncio.Event().wait()
        yield []

    def watch(self) -> Watch[KubeNode]:
        return Watch(cast(ApiClient, self), "/api/v1/nodes", KubeNode, retry_s=0.001)


def test_the_next_page_is_asked_for_before_the_one_at_hand_is_read() -> None:
    api = Pages(["a", "b"], ["c"], ["d"])

    async def run() -> list[tuple[object, int]]:
        seen: list[tuple[object, int]] = []
        async for news in api.watch().follow_pages():
            await asyncio.sleep(0.001)
            shown = [each.metadata.name for each in news.items] if isinstance(news, ListPage) else news
            seen.append((shown, len(api.asked)))
            if isinstance(news, ListEnded):
                break
        return seen

    seen = asyncio.run(asyncio.wait_for(run(), 10))
    listed = ListEnded(frozenset({"uid-a", "uid-b", "uid-c", "uid-d"}))
    assert seen == [(["a", "b"], 2), (["c"], 3), (["d"], 3), (listed, 3)]
    assert api.asked == ["", "1", "2"]


def test_a_list_that_fails_half_way_begins_again_and_only_the_whole_one_counts() -> None:
    api = Pages(["gone", "a"], ApiNotSent("connection refused"), ["a"], ["b"])

    async def run() -> list[str]:
        async for news in api.watch().follow():
            return [each.metadata.name for each in news.items if isinstance(each, KubeNode)]
        return []

    assert asyncio.run(asyncio.wait_for(run(), 10)) == ["a", "b"]
    assert api.asked == ["", "1", "", "3"]


def test_a_reader_that_leaves_in_the_middle_of_a_list_leaves_no_request_behind() -> None:
    api = Pages(["a"], ["b"], ["c"])

    async def run() -> bool:
        before = asyncio.all_tasks()
        async with aclosing(api.watch().follow_pages()) as pages:
            async for _ in pages:
                assert asyncio.all_tasks() > before
                break
        return asyncio.all_tasks() == before

    assert asyncio.run(asyncio.wait_for(run(), 10))
