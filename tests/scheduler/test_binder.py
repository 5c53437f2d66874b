"""When the binder has enough to do, as an API server with a clock of its own sees it."""

import asyncio
import json
from contextlib import suppress
from typing import Any, cast

import pytest

from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.scheduler.binder import MOMENT_S, SLOW_S, Binder
from milligpu.scheduler.extender import Extender
from testing.controlplane.memory import remembered_pods
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
        world.pods,
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


class Reads:
    """Answers with a pod, refuses all binds, and lets the watch show that the pod is gone before either answer."""

    def __init__(self, world: World, found: dict[str, Any]) -> None:
        self._world = world
        self._found = found

    async def get(self, _: str) -> bytes:
        self._world.state.drop_pod(self._found["metadata"]["uid"])
        self._world.pods.forget(self._found["metadata"]["uid"])
        return json.dumps(self._found).encode()

    async def send(self, *_: Any) -> bytes:
        raise ApiRefused("bind", 409, "conflict")


@pytest.mark.parametrize("on", ["", "n0"])
@pytest.mark.parametrize("filtered", [True, False])
def test_a_pod_that_is_read_after_it_was_deleted_is_not_remembered(on: str, *, filtered: bool) -> None:
    world, found = World(nodes=1), pod("a", 500)
    if filtered:
        world.filter(found)
    if on:
        found["spec"]["nodeName"] = on
    api = cast(ApiClient, Reads(world, found))
    binder = Binder(api, world.state, world.pods, lambda: True, lambda: 0.0, drop=world.state.drop_pod)
    order = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n0"}

    with suppress(ApiRefused):
        asyncio.run(binder.bind(Extender.bind_request(json.dumps(order).encode())))

    assert world.state.entry("uid-a") is None
    assert "uid-a" not in remembered_pods(world.pods)
