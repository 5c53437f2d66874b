"""Two versions live side by side: upgraded in either order and rolled back, while tenants compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import PROGRAM as TODAY
from devcluster.platform import Platform
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.model import names
from testing.versions import program_of
from tests.e2e.scheduling import grants, overcommitted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

OLD = "0.1.0"
MIB = 1024
# Every launch adds one to a number on the GPU; the program says how far it is, and ends if the number is another.
PROGRAM = """
import ctypes, time
PTX = b'''
.version 7.0
.target sm_80
.address_size 64
.visible .entry step(.param .u64 at)
{
    .reg .u64 %a;
    .reg .u32 %n;
    ld.param.u64 %a, [at];
    ld.global.u32 %n, [%a];
    add.u32 %n, %n, 1;
    st.global.u32 [%a], %n;
    ret;
}
'''
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    assert code == 0, code
context, module, kernel, block = (ctypes.c_void_p() for _ in range(4))
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"step"))
check(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(4)))
check(cuda.cuMemsetD32_v2(block, 0, ctypes.c_size_t(1)))
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(block))
number, launches = ctypes.c_uint32(), 0
while True:
    for _ in range(20):
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
        launches += 1
        time.sleep(0.005)
    check(cuda.cuMemcpyDtoH_v2(ctypes.byref(number), block, ctypes.c_size_t(4)))
    assert number.value == launches, (number.value, launches)
    print(launches, flush=True)
"""


class Tenants:
    """Pods that compute from their start to the end of the test."""

    def __init__(self, cluster: Cluster, namespace: str, image: str = images.CUDA.reference) -> None:
        self._cluster = cluster
        self._image = image
        self.namespace = namespace
        self._names: list[str] = []

    def add(self, name: str) -> None:
        """Start one more; it must get its share and compute."""
        resources = {names.VGPU: "100", names.VGPU_MEMORY: str(MIB)}
        made = pod(name, ["python3", "-c", PROGRAM], resources=resources, image=self._image)
        self._cluster.client.create(made, namespace=self.namespace)
        wait_for_phase(self._cluster, self.namespace, name, "Running")
        self._names.append(name)

    def go_on(self) -> None:
        """Wait until each has computed more than it has now."""
        before = {name: self._steps(name) for name in self._names}
        for name, steps in before.items():
            until(f"{name} to compute", lambda name=name, steps=steps: self._steps(name) > steps, 60)

    def never_restarted(self) -> bool:
        found: list[Any] = [self._cluster.client.get(Pod, name, namespace=self.namespace) for name in self._names]
        return all(status.restartCount == 0 for each in found for status in each.status.containerStatuses)

    def _steps(self, name: str) -> int:
        said = "".join(self._cluster.client.log(name, namespace=self.namespace, tail_lines=1)).split()
        return int(said[-1]) if said else 0


@pytest.fixture
def tenants(hurt_cluster: Cluster, hurt_platform: Platform) -> Iterator[Tenants]:
    """Ends with today's version in place, and nothing left."""
    (gpu_node,) = hurt_platform.nodes
    with new_namespace(hurt_cluster) as namespace:
        yield Tenants(hurt_cluster, namespace)
    containers = gpu_node.node.folder / "run/milligpu/containers"
    until("all to be gone", lambda: not list(containers.iterdir()), 60)


def test_scheduler_and_agent_are_upgraded_in_either_order_and_rolled_back_while_tenants_compute(
    hurt_cluster: Cluster, hurt_platform: Platform, tenants: Tenants
) -> None:
    service, (gpu_node,) = hurt_platform.service, hurt_platform.nodes
    old = program_of(OLD)

    def scheduler(program: Path) -> None:
        service.replace(program)

    def agent(program: Path) -> None:
        gpu_node.upgrade(program=program)
        if program == old:
            # It registers its socket twice; a kubelet of 1.37 then has no plugin until it restarts.
            gpu_node.node.restart_kubelet()
            until("the kubelet's slots", lambda: gpu_node.allocatable(names.VGPU) > 0, 60)

    # Each of the two changes in both directions next to either version of the other.
    steps = [
        ("agent-back", agent, old),
        ("scheduler-back", scheduler, old),
        ("scheduler-first", scheduler, TODAY),
        ("then-agent", agent, TODAY),
        ("scheduler-back-first", scheduler, old),
        ("then-agent-back", agent, old),
        ("agent-first", agent, TODAY),
        ("then-scheduler", scheduler, TODAY),
    ]
    tenants.add("first")
    for name, change, program in steps:
        change(program)
        tenants.add(name)
        tenants.go_on()
    assert tenants.never_restarted()
    assert overcommitted(grants(hurt_cluster, tenants.namespace), mib=40960) == []
