"""What the agent reports of its node's driver, and pods that require it."""

import pytest

from devcluster.platform import GpuNode
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.conftest import milligpu, on_node

pytestmark = pytest.mark.e2e


def test_the_agent_reports_the_driver_and_a_pod_can_require_it(gpu_node: GpuNode, namespace: str) -> None:
    (gpu,) = gpu_node.inventory()
    listed = on_node(gpu_node, "gpu", "list", "-o", "wide").stdout.splitlines()[1].split()
    assert {str(gpu.driver), str(gpu.cuda)} < set(listed)
    wanted = {"met": f"driver>={gpu.driver}, cuda>={gpu.cuda}", "unmet": "driver>=99999"}
    for name, requirements in wanted.items():
        gpu_node.cluster.client.create(
            pod(name, resources={names.VGPU: "100"}, annotations={names.REQUIRE: requirements}), namespace=namespace
        )
    wait_for_phase(gpu_node.cluster, namespace, "met", "Running")
    explained = milligpu(gpu_node, "-n", namespace, "explain", "met").stdout
    assert explained.endswith(f"; driver {gpu.driver}; CUDA {gpu.cuda}\n")
    until(
        "the reason",
        lambda: "1 DriverTooOld" in milligpu(gpu_node, "-n", namespace, "explain", "unmet").stdout,
        30,
    )
