"""When the binder has enough to do, as an API server with a clock of its own sees it."""

import asyncio
import json
from typing import Any, cast

from milligpu.kube.api import ApiClient
from milligpu.scheduler.binder import MOMENT_S, SLOW_S, Binder
from milligpu.scheduler.extender import Extender
from tests.cluster.objects import pod
from tests.scheduler.test_extender import World


class Slow:
    """Carries out what it is asked, after a while."""

    def __init__(self, world: World, takes_s: float) -> None:
        self._world = world
        self._takes_s = takes_s

    async def send(self, *_: Any) -> bytes:
        self._world.time += self._takes_s
        return b"{}"


def bound(world: World, takes_s: float) -> Binder:
    """A binder that has bound a few pods, each of which took so long."""
    binder = Binder(
        cast(ApiClient, Slow(world, takes_s)),
        world.state,
        cast(Any, None),
        lambda: True,
        lambda: world.time,
        drop=world.state.drop_pod,
    )
    for number in range(8):
        (node,) = world.filter(pod(f"p{number}", 500))["NodeNames"]
        order = {"PodName": f"p{number}", "PodNamespace": "default", "PodUID": f"uid-p{number}", "Node": node}
        asyncio.run(binder.bind(Extender.bind_request(json.dumps(order).encode())))
    return binder


def test_a_binder_with_quick_answers_is_not_busy() -> None:
    assert not bound(World(nodes=4, cards=4), SLOW_S / 4).busy


def test_a_binder_with_slow_answers_is_busy_for_a_while() -> None:
    world = World(nodes=4, cards=4)
    binder = bound(world, 4 * SLOW_S)
    assert binder.busy
    world.time += 2 * MOMENT_S
    assert not binder.busy
