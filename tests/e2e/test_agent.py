"""The agent on a real node: from a manifest to a share that a container holds."""

from collections.abc import Iterator

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.pods import wait_for_phase
from milligpu.scheduler.config import second_scheduler
from tests.e2e.gpu_node import GpuNode, cuda_pod
from tests.e2e.scheduling import SchedulerService

pytestmark = pytest.mark.e2e

NAME = "milligpu"
MEMORY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    assert code == 0, code
check(cuda.cuInit(0))
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
total = ctypes.c_size_t()
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
print(count.value, total.value >> 20)
"""


@pytest.fixture(scope="module")
def gpu_node(real_cluster: Cluster) -> Iterator[GpuNode]:
    """The session's node with two cards and an agent, and a scheduler that knows of shares."""
    service = SchedulerService(real_cluster, "agent-scheduler", "--scheduler-name", NAME).start().wait_ready()
    real_cluster.start_scheduler(second_scheduler(service.url, NAME), NAME)
    real_cluster.add_image(images.CUDA)
    node = GpuNode(real_cluster, real_cluster.nodes[0]).start().wait_ready()
    yield node
    node.agent.stop()
    real_cluster.control_plane.stop_scheduler(NAME)
    service.process.stop()


def log_of(cluster: Cluster, namespace: str, name: str) -> str:
    return "".join(cluster.client.log(name, namespace=namespace))


def test_a_container_sees_the_share_that_was_granted(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    cluster.client.create(cuda_pod("half", 500, MEMORY, schedulerName=NAME), namespace=namespace)
    wait_for_phase(cluster, namespace, "half", "Succeeded")
    assert log_of(cluster, namespace, "half").split() == ["1", "8192"]
    cluster.client.delete(Pod, "half", namespace=namespace)
