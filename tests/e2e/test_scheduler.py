"""The scheduler service beside a real kube-scheduler: pods get the GPU that was decided, with the grant."""

from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.pods import node_name, wait_for_phase
from milligpu.scheduler.config import second_scheduler
from tests.e2e.scheduling import SchedulerService, gpu_nodes, grant_of, grants, overcommitted, share_pod

pytestmark = pytest.mark.e2e

NAME = "milligpu"


@pytest.fixture(scope="module")
def service(control_plane: Cluster) -> Iterator[SchedulerService]:
    """One service and a kube-scheduler of its own for the module's tests."""
    started = SchedulerService(control_plane, "milligpu-scheduler").start().wait_ready()
    control_plane.start_scheduler(second_scheduler(started.url, NAME), NAME)
    yield started
    control_plane.control_plane.stop_scheduler(NAME)
    started.process.stop()


def test_a_share_is_granted_with_the_binding(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    nodes = gpu_nodes(kwok_cluster, 3)
    for number in range(6):
        asked = share_pod(f"p{number}", 500, nodes, schedulerName=NAME)
        control_plane.client.create(asked, namespace=namespace)

    placed = [wait_for_phase(control_plane, namespace, f"p{number}", "Running") for number in range(6)]

    for each in placed:
        grant = grant_of(each)
        assert grant is not None
        assert grant.node == node_name(each)
        assert grant.gpus[0].startswith(f"GPU-{grant.node}")
    given = grants(control_plane, namespace)
    assert len(given) == 6
    assert overcommitted(given) == []
