"""What the leader's queues protect."""

from typing import Any, cast

from milligpu.model.gpu_queue import GpuQueue, GpuQueues
from milligpu.scheduler.queue_controller import QueueController
from tests.queues.test_cluster_lines import World


def test_a_pod_is_protected_for_the_minimum_runtime_of_its_queue() -> None:
    world = World()
    world.put("young", 500, queue="patient")
    world.put("other", 500, queue="hasty")
    controller = QueueController(
        cast(Any, None),
        cast(Any, None),
        world.state,
        cast(Any, None),
        lambda: True,
        now=lambda: 0.0,
        clock=lambda: world.now,
        on_listed=lambda: None,
    )
    controller.queues = GpuQueues([GpuQueue("patient", minimum_runtime_s=600), GpuQueue("hasty")])
    young, other = world.state.pods
    young.started = other.started = world.now
    assert world.state.is_protected(young)
    assert not world.state.is_protected(other)
    world.now += 600
    assert not world.state.is_protected(young)
    controller.queues = GpuQueues()
    assert not world.state.is_protected(young)
