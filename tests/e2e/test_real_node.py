"""A pod on the real node is a real container, and the API server reaches into it."""

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.pods import node_name, pod, wait_for_phase
from devcluster.wait import until

pytestmark = pytest.mark.e2e

IN_CLUSTER_REQUEST = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
request = urllib.request.Request(server + "/version")
request.add_header("Authorization", "Bearer " + open(folder + "/token").read())
trusted = ssl.create_default_context(cafile=folder + "/ca.crt")
print(urllib.request.urlopen(request, context=trusted, timeout=10).read().decode())
"""


def test_a_pod_runs_to_completion_and_its_log_comes_through_the_api_server(
    real_cluster: Cluster, namespace: str
) -> None:
    script = "import os, sys; print('python', sys.version_info[0], 'as pid', os.getpid())"
    real_cluster.client.create(pod("hello", ["python3", "-c", script]), namespace=namespace)

    done = wait_for_phase(real_cluster, namespace, "hello", "Succeeded")

    assert node_name(done) == real_cluster.nodes[0].name
    log = "".join(real_cluster.client.log("hello", namespace=namespace))
    assert log.strip() == "python 3 as pid 1"


def test_a_command_that_fails_makes_the_pod_fail(real_cluster: Cluster, namespace: str) -> None:
    real_cluster.client.create(pod("sad", ["bash", "-c", "exit 3"]), namespace=namespace)

    failed = wait_for_phase(real_cluster, namespace, "sad", "Failed")

    assert failed.status
    assert failed.status.containerStatuses
    state = failed.status.containerStatuses[0].state
    assert state
    assert state.terminated
    assert state.terminated.exitCode == 3


def test_exec_runs_a_command_inside_the_container(real_cluster: Cluster, namespace: str) -> None:
    real_cluster.client.create(pod("target"), namespace=namespace)
    wait_for_phase(real_cluster, namespace, "target", "Running")

    said = real_cluster.kubectl("exec", "--namespace", namespace, "target", "--", "cat", "/proc/1/cmdline")

    assert said.split("\0")[:2] == ["sleep", "infinity"]


def test_a_pod_reaches_the_api_server_as_its_service_account(real_cluster: Cluster, namespace: str) -> None:
    real_cluster.client.create(pod("asks", ["python3", "-c", IN_CLUSTER_REQUEST]), namespace=namespace)

    wait_for_phase(real_cluster, namespace, "asks", "Succeeded")

    log = "".join(real_cluster.client.log("asks", namespace=namespace))
    assert '"gitVersion": "v1.' in log


def test_a_deleted_pods_container_is_gone(real_cluster: Cluster, namespace: str) -> None:
    node = real_cluster.nodes[0]
    real_cluster.client.create(pod("short", ["sleep", "4242"]), namespace=namespace)
    running = wait_for_phase(real_cluster, namespace, "short", "Running")
    assert running.status
    assert running.status.containerStatuses
    container = (running.status.containerStatuses[0].containerID or "").removeprefix("containerd://")
    assert container in node.ctr("--namespace=k8s.io", "tasks", "list").stdout

    real_cluster.client.delete(Pod, "short", namespace=namespace)

    until(
        "the container to be gone",
        lambda: container not in node.ctr("--namespace=k8s.io", "tasks", "list").stdout,
        20,
    )
