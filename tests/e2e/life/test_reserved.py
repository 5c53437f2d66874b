"""Commands on a cluster node get what its agent sets aside, pods the rest, together never more than the card."""

from collections.abc import Iterator

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster.platform import GpuNode
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.conftest import on_node
from tests.e2e.life.test_resize import start
from tests.e2e.scheduling import told

pytestmark = pytest.mark.e2e

MEMORY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
total = ctypes.c_size_t()
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value >> 20)
"""
NO_CAPACITY, PLATFORM = 75, 125


@pytest.fixture
def reserving(gpu_node: GpuNode) -> Iterator[GpuNode]:
    """The node with 0.4 of its card set aside."""
    gpu_node.upgrade("--reserve", "0.4")
    yield gpu_node
    gpu_node.upgrade()
    until("all slots to be back", lambda: gpu_node.allocatable(names.VGPU) == 1000, 30)


def test_commands_get_what_is_set_aside_and_pods_the_rest(reserving: GpuNode, namespace: str) -> None:
    until("the kubelet to count the rest", lambda: reserving.allocatable(names.VGPU) == 600, 30)
    assert reserving.allocatable(names.WHOLE_GPU) == 0
    (card,) = reserving.inventory()
    assert card.reserved == 400
    start(reserving, namespace, "a", 600, 24576)
    more = pod("more", resources={names.VGPU: "100"})
    reserving.cluster.client.create(more, namespace=namespace)
    until("a word on why it waits", lambda: told(reserving.cluster, namespace, "more") or None, 60)
    beside = on_node(reserving, "run", "--no-wait", "-p", "0.4", "-m", "16Gi", "--", "python3", "-c", MEMORY)
    assert (beside.returncode, beside.stdout.strip()) == (0, "16384"), beside.stderr
    for words in (("-p", "0.5"), ("-p", "0.1", "-m", "17Gi"), ("-p", "1")):
        refused = on_node(reserving, "run", "--no-wait", *words, "--", "true")
        assert refused.returncode == NO_CAPACITY, refused.stderr
        assert "--reserve" in refused.stderr
    assert reserving.cluster.client.get(Pod, "a", namespace=namespace)


def test_without_the_agent_commands_on_a_node_get_no_gpu(gpu_node: GpuNode) -> None:
    refused = on_node(gpu_node, "run", "--no-wait", "-p", "0.1", "--", "true")
    assert refused.returncode == NO_CAPACITY, "nothing is set aside"
    gpu_node.agent.kill()
    missed = on_node(gpu_node, "run", "--no-wait", "-p", "0.1", "--", "true")
    gpu_node.start()
    assert missed.returncode == PLATFORM
    assert "its agent does not answer" in missed.stderr
