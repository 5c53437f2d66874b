"""Pods of a group are bound together: each bind waits for the others, and all of them begin or none."""

import asyncio

import pytest

from milligpu.cluster.observed import SchedulingSpec
from milligpu.cluster.pod_entry import PodStage
from milligpu.model.errors import NoCapacity
from milligpu.model.grant import Grant
from milligpu.scheduler import group_binds
from milligpu.scheduler.group_binds import GroupBinds
from tests.queues.test_groups import GroupWorld


def admitted(count: int, gpus: int = 3) -> tuple[GroupWorld, list[SchedulingSpec]]:
    """A group whose turn has come."""
    world = GroupWorld(gpus=gpus)
    for name in "abc"[:count]:
        world.member(name, 1000, count)
    assert world.admit() == list("abc"[:count])
    return world, [each.spec for each in world.state.pods]


async def ask(binds: GroupBinds, *specs: SchedulingSpec) -> list[Grant | BaseException | None]:
    return await asyncio.gather(*(binds.begin(each, "n0") for each in specs), return_exceptions=True)


def stages(world: GroupWorld) -> set[PodStage]:
    return {each.stage for each in world.state.pods}


def test_binds_of_a_group_begin_when_all_have_come() -> None:
    world, specs = admitted(3)
    found = asyncio.run(ask(GroupBinds(world.state), *specs))
    assert [isinstance(each, Grant) for each in found] == [True] * 3
    assert stages(world) == {PodStage.BINDING}


def test_without_the_others_no_bind_begins_and_the_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_binds, "WAIT_S", 0.01)
    world, specs = admitted(3)
    binds = GroupBinds(world.state)
    (first, second) = asyncio.run(ask(binds, *specs[:2]))
    assert isinstance(first, NoCapacity)
    assert isinstance(second, NoCapacity)
    assert "waits for other pods of group job" in first.message
    assert stages(world) == {PodStage.RESERVED}
    monkeypatch.undo()
    assert all(isinstance(each, Grant) for each in asyncio.run(ask(binds, *specs)))


def test_if_one_of_a_group_has_lost_its_place_none_is_bound() -> None:
    world, specs = admitted(3)
    world.state.reservations.put_back(world.state.pods[specs[2].pod.uid])
    found = asyncio.run(ask(GroupBinds(world.state), *specs))
    assert all(isinstance(each, NoCapacity) for each in found)
    assert stages(world) == {PodStage.WAITING}
    assert world.admit() == ["a", "b", "c"]


def test_a_pod_that_was_created_again_is_bound_next_to_its_group() -> None:
    world, specs = admitted(3)
    binds = GroupBinds(world.state)
    asyncio.run(ask(binds, *specs))
    world.state.drop_pod(specs[1].pod.uid)
    world.member("b", 1000, 3)
    assert world.admit() == ["b"]
    (grant,) = asyncio.run(ask(binds, world.state.pods[specs[1].pod.uid].spec))
    assert isinstance(grant, Grant)


def test_the_last_pod_of_a_group_is_bound_although_the_others_have_succeeded() -> None:
    world, specs = admitted(2)
    binds = GroupBinds(world.state)
    world.member("a", 1000, 2, ended="2026-01-01T00:01:00Z")
    (grant,) = asyncio.run(ask(binds, specs[1]))
    assert isinstance(grant, Grant)
