"""What the leader sends for preemption: trials, then smaller grants, then evictions, and nothing in vain."""

import asyncio
import json
from typing import Any, cast

from milligpu.cluster.preemption import lower_priority
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.events import EventRecorder
from milligpu.model import names
from milligpu.scheduler.preemptor import Preemptor
from milligpu.scheduler.resizer import Resizer
from milligpu.wire.grant import encode_grant
from milligpu.wire.kubernetes import decode_pod
from tests.cluster.objects import pod
from tests.cluster.test_shrink import run, see
from tests.cluster.test_state import World

_TOO_MANY_REQUESTS = 429
_ROUNDS = 12


class Api:
    """Takes all writes, and refuses to evict some pods, as a disruption budget does."""

    def __init__(self, world: World, *guarded: str) -> None:
        self._world = world
        self._guarded = guarded
        self.sent: list[str] = []

    async def get(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        grant = self._world.state.pods[f"uid-{name}"].grant
        return json.dumps(pod(name, 1, grant=grant)).encode()

    async def send(self, verb: str, path: str, body: Any, **_: object) -> bytes:
        name, what = path.split("/")[-2:]
        dry = "dryRun" in str(body)
        self.sent.append(f"{verb} {name} {what}{' dry' if dry else ''}")
        if what == "eviction" and name in self._guarded:
            raise ApiRefused(path, _TOO_MANY_REQUESTS, "a disruption budget forbids it")
        return b"{}"


def preempt(world: World, api: Api, *names: str) -> list[str]:
    """Let the leader look some times at a pod, or a group, that fits nowhere; return what it sent."""
    client = cast(ApiClient, api)
    events = EventRecorder(client, "c", "i", lambda: world.time)
    resizer = Resizer(client, events, world.state, lambda: True, lambda: world.time, pods=world.pods)
    entries = [world.state.pods[f"uid-{name}"] for name in names]

    def now() -> float:
        """Time goes by also between two questions."""
        world.time += 0.001
        return world.time

    preemptor = Preemptor(
        client,
        world.state,
        events,
        lambda: entries,
        lambda: [(entries, lower_priority(entries[0].spec))],
        resizer=resizer,
        valid=lambda: True,
        now=now,
    )

    async def look() -> None:
        for _ in range(_ROUNDS):
            world.time += 2.0
            await preemptor.look()

    asyncio.run(look())
    return api.sent


def test_evictions_are_tried_then_pods_are_shrunk_then_evicted() -> None:
    world = World()
    grant = run(world, "elastic", 600, 1024, floor=300)
    run(world, "rigid", 400, 1024)
    see(world, "high", 650, 1024, 10)
    sent = preempt(world, Api(world), "high")
    assert sent == ["POST rigid eviction dry", "PATCH elastic status", "POST rigid eviction"]
    entry = world.state.pods["uid-elastic"]
    assert entry.grant is not None
    assert encode_grant(entry.grant) != encode_grant(grant)
    world.state.drop_pod("uid-rigid")
    assert world.state.pods["uid-high"].node == "n0"


def test_a_pod_whose_share_is_freed_by_shrinking_alone_gets_its_place_at_once() -> None:
    world = World()
    run(world, "elastic", 1000, 1024, floor=300)
    see(world, "high", 650, 1024, 10)
    assert preempt(world, Api(world), "high") == ["PATCH elastic status"]
    assert world.state.pods["uid-high"].node == "n0"


def test_where_a_disruption_budget_forbids_an_eviction_another_pod_leaves() -> None:
    world = World()
    run(world, "victim", 500, 1024)
    run(world, "guarded", 500, 1024)
    see(world, "high", 400, 1024, 10)
    sent = preempt(world, Api(world, "guarded"), "high")
    assert sent == ["POST guarded eviction dry", "POST victim eviction dry", "POST victim eviction"]


def test_nobody_is_shrunk_or_evicted_if_a_disruption_budget_forbids_one_of_the_evictions() -> None:
    world = World()
    run(world, "elastic", 600, 1024, floor=300)
    run(world, "guarded", 400, 1024)
    see(world, "high", 650, 1024, 10)
    sent = preempt(world, Api(world, "guarded"), "high")
    assert sent == ["POST guarded eviction dry"]


def test_a_pod_with_the_preemption_policy_never_disturbs_nobody() -> None:
    world = World()
    run(world, "elastic", 1000, 1024, floor=300)
    found = pod("polite", 500, priority=10, preemptionPolicy="Never")
    found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = "1024"
    world.state.put_pod(world.pods.read(decode_pod(json.dumps(found).encode())))
    assert preempt(world, Api(world), "polite") == []


def test_for_a_group_all_evictions_are_tried_before_any_is_made() -> None:
    def group(*guarded: str) -> list[str]:
        world = World(cards=2)
        run(world, "a", 600, 1024)
        run(world, "b", 600, 1024)
        notes = {names.GROUP: "job", names.GROUP_SIZE: "2"}
        for name in ("one", "two"):
            found = pod(name, 700, notes=notes, priority=10)
            found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = "1024"
            world.state.put_pod(world.pods.read(decode_pod(json.dumps(found).encode())))
        return preempt(world, Api(world, *guarded), "one", "two")

    sent = group()
    assert {each.split()[1] for each in sent} == {"a", "b"}
    assert [each.endswith("dry") for each in sent] == [True, True, False, False]
    assert all(each.endswith("dry") for each in group("a"))
