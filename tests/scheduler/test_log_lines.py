"""The log of the scheduler: one line per decision, with names before uids and values as keys."""

import asyncio
import json
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from milligpu.cluster.pod_entry import PodEntry
from milligpu.kube.api import ApiClient
from milligpu.kube.events import EventRecorder
from milligpu.kube.watch import Followed
from milligpu.model import names
from milligpu.scheduler import waiting_events
from milligpu.scheduler.binder import Binder
from milligpu.scheduler.extender import Extender
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.scheduler.nominator import Nominator
from milligpu.scheduler.resizer import Resizer
from milligpu.scheduler.settings import SchedulerSettings
from milligpu.scheduler.term import LeaderTerm
from milligpu.scheduler.waiting_events import WaitingEvents
from milligpu.wire import kubernetes
from milligpu.wire.grant import encode_grant
from tests.cluster.objects import node, pod
from tests.scheduler.test_extender import World


class Api:
    """Says yes to everything."""

    async def send(self, *_: Any, **_more: Any) -> bytes:
        return b"{}"


def bind(world: World, name: str) -> list[EventDict]:
    binder = Binder(
        cast(ApiClient, Api()),
        world.state,
        world.pods,
        lambda: True,
        lambda: world.time,
        drop=world.state.drop_pod,
    )
    order = {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": "n0"}
    with capture_logs() as lines:
        asyncio.run(binder.bind(Extender.bind_request(json.dumps(order).encode())))
    return lines


def test_a_grant_is_logged_in_one_line_with_pod_node_and_shares() -> None:
    world = World(nodes=1, cards=1)
    world.filter(pod("a", 500))
    (line,) = bind(world, "a")
    assert list(line)[:5] == ["pod", "node", "shares", "uid", "event"]
    assert (line["event"], line["pod"], line["node"], line["uid"]) == ("Bound pod", "default/a", "n0", "uid-a")
    assert line["shares"].startswith("main: GPU-n0-0 0.5 with ")


def test_a_refusal_is_logged_when_it_changes_and_not_with_every_try(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(nodes=1, cards=1)
    monkeypatch.setattr(waiting_events, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(waiting_events, "_STALE_S", 1.0)
    events = EventRecorder(cast(ApiClient, Api()), "c", "i", lambda: world.time)
    monkeypatch.setattr(events, "drained", lambda: asyncio.sleep(0))
    nominator = Nominator(cast(ApiClient, Api()), world.state, [], lambda: False, lambda: world.time)
    waiting = WaitingEvents(events, world.state, nominator, lambda: world.time)
    world.see(pod("late", 700))
    entry: PodEntry | None = world.state.entry("uid-late")
    assert entry is not None
    nominator.unplaceable["uid-late"] = entry

    def lines(held: str, milli: int) -> list[EventDict]:
        world.filter(pod(held, milli))
        world.time += 100.0

        async def run() -> None:
            task = asyncio.create_task(waiting.run())
            for _ in range(200):
                await asyncio.sleep(0)
            task.cancel()

        with capture_logs() as found:
            asyncio.run(run())
        return found

    (line,) = lines("a", 500)
    assert (line["event"], line["pod"], line["uid"]) == ("Pod waits", "default/late", "uid-late")
    assert "InsufficientGPUCore (best: n0/GPU-n0-0 has 0.5 of 0.7 GPU)" in line["message"]
    assert lines("b", 900) == []
    (line,) = lines("c", 300)
    assert "0.2 of 0.7 GPU" in line["message"]


def bound(name: str, world: World, **status: Any) -> kubernetes.KubePod:
    """A pod on its node, with the grant that it was given."""
    grant = world.state.reservations.reserve(world.pods.read(decoded(pod(name, 500))).spec, ["n0"])
    assert grant is not None
    found = pod(name, 500, notes={names.GRANT: encode_grant(grant)}, nodeName="n0")
    return decoded(found | {"status": status})


def decoded(found: dict[str, Any]) -> kubernetes.KubePod:
    return kubernetes.decode_pod(json.dumps(found).encode())


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Succeeded"}, "succeeded"),
        ({"phase": "Running"}, "deleted"),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            },
            "evicted (EvictionByEvictionAPI)",
        ),
    ],
)
def test_a_released_share_is_logged_in_one_line_with_the_reason(status: dict[str, Any], why: str) -> None:
    settings = SchedulerSettings(identity="me")
    watch = cast("Followed[Any]", None)
    term = LeaderTerm(
        cast(ApiClient, Api()),
        settings,
        watch,
        watch,
        watch,
        valid=lambda: True,
        metrics=SchedulerMetrics(),
        now=lambda: 0.0,
    )
    term._put_node(node("n0", 1))  # pyright: ignore[reportPrivateUsage]
    found = bound("a", World(nodes=1, cards=1), phase="Running")
    ended = bound("a", World(nodes=1, cards=1), **status)
    term._put_pod(found)  # pyright: ignore[reportPrivateUsage]
    with capture_logs() as lines:
        if status["phase"] == "Succeeded":
            term._put_pod(ended)  # pyright: ignore[reportPrivateUsage]
            term._put_pod(ended)  # pyright: ignore[reportPrivateUsage]
        else:
            term._delete_pod(ended)  # pyright: ignore[reportPrivateUsage]
    (line,) = lines
    assert (line["event"], line["pod"], line["node"], line["why"]) == ("Released share", "default/a", "n0", why)
    assert line["shares"].startswith("main: GPU-n0-0 0.5 with ")


def test_a_resize_is_logged_once_with_why_it_waits() -> None:
    world = World(nodes=1, cards=1)
    events = EventRecorder(cast(ApiClient, Api()), "c", "i", lambda: world.time)
    resizer = Resizer(
        cast(ApiClient, Api()), events, world.state, lambda: True, lambda: world.time, pods=world.pods
    )
    found = bound("a", World(nodes=1, cards=1), phase="Running")
    assert found.metadata.annotations is not None
    found.metadata.annotations[names.RESIZE] = json.dumps({"main": {"milli": 900, "mib": 1024}})
    world.state.put_pod(world.pods.read(found))
    world.filter(pod("b", 400))

    async def run() -> None:
        task = asyncio.create_task(resizer.run())
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()

    with capture_logs() as lines:
        asyncio.run(run())
        world.state.pods.capacity_version += 1
        asyncio.run(run())
    (line,) = lines
    assert (line["event"], line["pod"], line["node"]) == ("Resize waits", "default/a", "n0")
