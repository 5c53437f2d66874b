"""The scheduler service beside a real kube-scheduler: pods get the GPU that was decided, with the grant."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from lightkube.resources.scheduling_v1 import PriorityClass

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.platform import SchedulerService
from devcluster.pods import node_name, wait_for_phase
from devcluster.wait import until
from milligpu.manifests.kube_scheduler import SECOND_SCHEDULER_GATES, second_scheduler
from tests.e2e.scheduling import gpu_nodes, grant_of, grants, overcommitted, share_pod, told

pytestmark = pytest.mark.e2e

NAME = "milligpu"


@pytest.fixture(scope="module")
def service(control_plane: Cluster) -> Iterator[SchedulerService]:
    """One service and a kube-scheduler of its own for the module's tests."""
    started = SchedulerService(control_plane, "milligpu-scheduler", "--scheduler-name", NAME).start().wait_ready()
    control_plane.start_scheduler(second_scheduler(started.url, NAME), NAME, SECOND_SCHEDULER_GATES)
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


def test_a_pod_waits_with_a_reason_and_is_woken_when_a_share_frees(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    nodes = gpu_nodes(kwok_cluster, 1, cards=2)
    for name in ("a", "b"):
        control_plane.client.create(share_pod(name, 600, nodes, schedulerName=NAME), namespace=namespace)
        wait_for_phase(control_plane, namespace, name, "Running")
    # Both cards have 400 left: the node's total would do, and no single card does.
    control_plane.client.create(share_pod("c", 500, nodes, schedulerName=NAME), namespace=namespace)

    said = until("an event that says why", lambda: told(control_plane, namespace, "c") or None, 30)
    card = f"{nodes.names[0]}/GPU-{nodes.names[0]}"
    assert f"1 InsufficientGPUCore (best: {card}-0 has 0.4 of 0.5 GPU)" in said
    assert "try 0.4 GPU, or again when pod a on" in said

    assert milligpu(control_plane, "explain", "c", "-n", namespace) == said
    assert milligpu(control_plane, "explain", "a", "-n", namespace).startswith(f"on {nodes.names[0]}; main: GPU-")

    control_plane.client.delete(Pod, "b", namespace=namespace)
    wait_for_phase(control_plane, namespace, "c", "Running")
    assert overcommitted(grants(control_plane, namespace)) == []


def test_preemption_evicts_only_what_makes_room_on_one_gpu(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    nodes = gpu_nodes(kwok_cluster, 1, cards=2)
    for name, milli in (("a", 600), ("b", 600), ("c", 400), ("d", 400)):
        control_plane.client.create(share_pod(name, milli, nodes, schedulerName=NAME), namespace=namespace)
        wait_for_phase(control_plane, namespace, name, "Running")
    important = PriorityClass(metadata=ObjectMeta(name=f"{namespace}-important"), value=1000)
    control_plane.client.create(important)
    # By the node's total both pods of 400 would have to go, and then no GPU has 500 free.
    asked = share_pod("high", 500, nodes, schedulerName=NAME, priorityClassName=f"{namespace}-important")
    until(
        "the API server's admission to know the class",
        lambda: control_plane.client.create(asked, namespace=namespace),
        30,
        retry=(ApiError,),
    )

    wait_for_phase(control_plane, namespace, "high", "Running")
    listed = read_json(control_plane.client, f"/api/v1/namespaces/{namespace}/pods")
    left = {each["metadata"]["name"] for each in listed["items"]}
    control_plane.client.delete(PriorityClass, f"{namespace}-important")

    assert left in ({"a", "c", "d", "high"}, {"b", "c", "d", "high"})
    assert overcommitted(grants(control_plane, namespace)) == []


def test_free_shows_the_largest_share_of_each_model(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    nodes = gpu_nodes(kwok_cluster, 1, cards=2, model="Quadro RTX 6000", mib=24576)
    control_plane.client.create(share_pod("a", 600, nodes, schedulerName=NAME), namespace=namespace)
    wait_for_phase(control_plane, namespace, "a", "Running")

    rooms = {room["model"]: room for room in json.loads(milligpu(control_plane, "free", "-o", "json"))}

    found = rooms["Quadro RTX 6000"]
    assert (found["gpus"], found["whole"], found["milli"], found["mib"]) == (2, 1, 1000, 24576)
    assert found["total"] == 1400


def milligpu(cluster: Cluster, *arguments: str) -> str:
    """What the command prints."""
    program = Path(sys.executable).with_name("milligpu")
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": "/usr/bin:/bin", "HOME": "/"}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
