"""Components die and come back, as they do in real life, and pods do not notice."""

from collections.abc import Iterator

import httpx2
import pytest
from lightkube.resources.core_v1 import Pod

from devcluster import kwok
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.pods import pod, wait_for_phase
from devcluster.process import Process
from devcluster.wait import until

pytestmark = pytest.mark.e2e

SURVIVOR = "survivor"
API_IS_BACK_S = 60.0


@pytest.fixture(scope="module")
def cluster(hurt_cluster: Cluster) -> Cluster:
    """A cluster that these tests may hurt."""
    return hurt_cluster


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace with a pod that runs, and shall go on running."""
    with new_namespace(cluster) as name:
        cluster.client.create(pod(SURVIVOR), namespace=name)
        wait_for_phase(cluster, name, SURVIVOR, "Running")
        yield name


@pytest.mark.parametrize("component", ["kubelet", "containerd", "apiserver", "etcd", "controller_manager"])
def test_a_running_pod_survives_the_death_of(cluster: Cluster, namespace: str, component: str) -> None:
    before = _container(cluster, namespace)
    process = _component(cluster, component)
    old_pid = process.pid

    process.kill()
    assert not process.is_running
    process.start()

    assert process.pid != old_pid
    _wait_until_useful(cluster, namespace, f"after-{component.replace('_', '-')}")
    assert _container(cluster, namespace) == before
    said = cluster.kubectl("exec", "--namespace", namespace, SURVIVOR, "--", "echo", "still here")
    assert said.strip() == "still here"


def test_a_process_that_died_is_reported_with_its_last_words(cluster: Cluster) -> None:
    scheduler = cluster.start_scheduler({"profiles": [{"nonsense": True}]}, "broken")

    until("the scheduler to give up", lambda: not scheduler.is_running, 20)

    with pytest.raises(Exception, match=r"broken died \(exit code 1\)(.|\n)*nonsense"):
        scheduler.must_run()
    # Else whoever starts again what is down would start this one, too.
    cluster.control_plane.stop_scheduler("broken")


def _component(cluster: Cluster, name: str) -> Process:
    owner = cluster.nodes[0] if name in ("kubelet", "containerd") else cluster.control_plane
    return getattr(owner, name)


def _wait_until_useful(cluster: Cluster, namespace: str, name: str) -> None:
    """The whole way works again: the API takes a pod, the scheduler places it, the node runs it."""
    until(
        "the node to be Ready",
        lambda: kwok.readiness(cluster.client).get(cluster.nodes[0].name),
        API_IS_BACK_S,
        retry=(httpx2.HTTPError,),
        last_state=lambda: cluster.last_state(namespace),
    )
    until(
        "the API to take a pod",
        lambda: cluster.client.create(pod(name, ["true"]), namespace=namespace),
        API_IS_BACK_S,
        retry=(httpx2.HTTPError,),
    )
    wait_for_phase(cluster, namespace, name, "Succeeded")


def _container(cluster: Cluster, namespace: str) -> tuple[str, int]:
    """Which container it is, and how often it was started: neither may change."""
    found = cluster.client.get(Pod, SURVIVOR, namespace=namespace)
    assert found.status
    assert found.status.containerStatuses
    status = found.status.containerStatuses[0]
    assert status.state
    assert status.state.running
    return status.containerID or "", status.restartCount
