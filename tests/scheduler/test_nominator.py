"""Whom the nominator writes to, as an API server that only takes notes sees it."""

import asyncio
from typing import Any, cast

from milligpu.cluster.pod_entry import PodStage
from milligpu.kube.api import ApiClient
from milligpu.model import names
from milligpu.scheduler.nominator import HEAD_START_S, NEXT_IN_LINE, Nominator
from tests.cluster.objects import pod
from tests.scheduler.test_extender import World


class Notes:
    """Takes nominations down."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []

    async def send(self, method: str, path: str, body: Any, **_: Any) -> bytes:
        assert method == "PATCH"
        self.written.append((path.split("/")[6], body["status"]["nominatedNodeName"]))
        return b"{}"


def nominate(world: World, *, busy: bool) -> list[tuple[str, str]]:
    """One look at all who wait."""
    notes = Notes()

    async def run() -> None:
        nominator = Nominator(
            cast(ApiClient, notes), world.state, ["default-scheduler"], lambda: busy, lambda: world.time
        )
        running = asyncio.create_task(nominator.run())
        nominator.on_tick()
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())
    return notes.written


def waiting(count: int) -> World:
    world = World(nodes=4, cards=4)
    for number in range(count):
        world.see(pod(f"p{number}", 500))
    world.time += 2 * HEAD_START_S
    return world


def test_waiting_pods_are_nominated_to_the_place_that_is_reserved_for_them() -> None:
    world = waiting(6)
    written = dict(nominate(world, busy=False))
    assert len(written) == 6
    for name, node in written.items():
        entry = world.state.entry(f"uid-{name}")
        assert entry is not None
        assert (entry.stage, entry.node) == (PodStage.NOMINATED, node)


def test_while_binds_pile_up_only_pods_that_filter_refused_are_nominated() -> None:
    world = waiting(0)
    answer = world.filter(pod("away", 500, notes={names.REQUIRE: "model=T4"}), among=[])
    assert answer["NodeNames"] == []
    world.see(pod("away", 500, notes={names.REQUIRE: "model=T4"}))
    for number in range(6):
        world.see(pod(f"p{number}", 500))
    world.time += 10.0
    assert [name for name, _ in nominate(world, busy=True)] == ["away"]


def test_the_next_in_line_are_left_to_kube_scheduler() -> None:
    world = waiting(NEXT_IN_LINE + 4)
    world.filter(pod("p0", 500))
    written = {name for name, _ in nominate(world, busy=False)}
    assert written == {f"p{number}" for number in range(NEXT_IN_LINE + 1, NEXT_IN_LINE + 4)}
