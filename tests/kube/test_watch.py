"""A shared watch: each reader sees all objects first, then every change."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from milligpu.kube.watch import Changed, Relisted, SharedWatch, Watch
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
