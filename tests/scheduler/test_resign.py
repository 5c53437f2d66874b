"""A leader that stops releases its Lease only when no bind of its own can still be carried out."""

from collections import deque

import pytest

from testing.controlplane.client import Fault
from testing.controlplane.world import PodAsk, World


def holder(world: World) -> str:
    return "" if world.server.lease is None else world.server.lease["spec"].get("holderIdentity", "")


@pytest.mark.parametrize(("fault", "released"), [(None, True), (Fault.LATE, False)])
def test_the_lease_is_released_only_after_the_last_bind_has_ended(fault: Fault | None, released: bool) -> None:
    """Else the next leader lists the cluster, and grants what the late bind takes."""
    world = World("0", nodes=1, gpus=1, hints=False, clears=False, kinds=True, queue=False)
    world.clock.run_until(20.0)
    leader = world.leader
    assert leader is not None
    (standby,) = (each for each in world.instances if each is not leader)
    standby.pause(1000.0)
    if fault is not None:
        world.network.due["bind"] = deque([fault])
    world.create(PodAsk(500))
    world.clock.run_until(21.0)
    first = holder(world)
    leader.stop()
    world.clock.run_until(30.0)  # a Lease that is not released lasts for 15 s
    found = holder(world)
    world.close()
    assert (found != first) is released
