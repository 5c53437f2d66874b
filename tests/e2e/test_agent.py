"""The agent on a real node: from a manifest to a share that a container holds."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import Pod

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.platform import GpuNode, SchedulerService
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.manifests.kube_scheduler import second_scheduler
from milligpu.model import names
from milligpu.model.gpu import GpuState
from milligpu.softgpu.start import inject_fault
from tests.e2e.scheduling import grants, overcommitted, told

pytestmark = pytest.mark.e2e

NAME = "milligpu"
EXAMPLES = Path(__file__).parents[2] / "examples"
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


def cuda_pod(name: str, milli: int, program: str, **spec: Any) -> Pod:
    """A pod that runs a Python program on a share."""
    return pod(
        name,
        ["python3", "-c", program],
        resources={names.VGPU: str(milli)},
        image=images.CUDA.reference,
        schedulerName=NAME,
        **spec,
    )


@pytest.fixture(scope="module")
def gpu_node(real_cluster: Cluster) -> Iterator[GpuNode]:
    """The session's node with two cards and an agent, and a scheduler that knows of shares."""
    service = SchedulerService(real_cluster, "agent-scheduler", "--scheduler-name", NAME).start().wait_ready()
    real_cluster.start_scheduler(second_scheduler(service.url, NAME), NAME)
    real_cluster.add_image(images.CUDA)
    node = GpuNode(real_cluster, real_cluster.nodes[0]).start()
    yield node
    node.agent.stop()
    real_cluster.control_plane.stop_scheduler(NAME)
    service.process.stop()


def log_of(cluster: Cluster, namespace: str, name: str) -> str:
    return "".join(cluster.client.log(name, namespace=namespace))


HOLD = (
    MEMORY
    + """
import sys, time
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
print("ready", flush=True)
time.sleep(600)
"""
)


def wait_for_word(cluster: Cluster, namespace: str, name: str, word: str) -> None:
    wait_for_phase(cluster, namespace, name, "Running")
    until(f"{name} to say {word}", lambda: word in log_of(cluster, namespace, name), 60)


def test_a_container_sees_the_share_that_was_granted(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    cluster.client.create(cuda_pod("half", 500, MEMORY), namespace=namespace)
    wait_for_phase(cluster, namespace, "half", "Succeeded")
    assert log_of(cluster, namespace, "half").split() == ["1", "20480"]
    cluster.client.delete(Pod, "half", namespace=namespace)


def test_the_example_of_half_a_gpu_runs_as_it_says(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    example = yaml.safe_load((EXAMPLES / "half-gpu.yaml").read_text())
    example["spec"]["template"]["spec"]["schedulerName"] = NAME
    cluster.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=yaml.safe_dump(example))
    cluster.kubectl("wait", "--namespace", namespace, "job/half-gpu", "--for=condition=complete", "--timeout=120s")
    said = cluster.kubectl("logs", "--namespace", namespace, "job/half-gpu")
    assert "GPU memory that this container sees: 20480 MiB" in said


def test_two_pods_share_a_gpu_and_a_third_waits_until_one_ends(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    card = {"milligpu.dev/affinity": "together"}
    for name in ("a", "b"):
        share = cuda_pod(name, 500, HOLD, annotations=card)
        cluster.client.create(share, namespace=namespace)
    for name in ("a", "b"):
        wait_for_word(cluster, namespace, name, "ready")
    held = grants(cluster, namespace)
    assert held["a"].gpus == held["b"].gpus
    assert overcommitted(held, mib=40960) == []
    third = cuda_pod("c", 500, MEMORY, annotations=card)
    cluster.client.create(third, namespace=namespace)
    until("a word on why it waits", lambda: told(cluster, namespace, "c") or None, 30)
    cluster.client.delete(Pod, "a", namespace=namespace)
    wait_for_phase(cluster, namespace, "c", "Succeeded")
    assert log_of(cluster, namespace, "c").split() == ["1", "20480"]


def test_a_whole_gpu_runs_without_the_limits_library(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    program = MEMORY + "import os; print(os.path.exists('/run/milligpu/tenant'))"
    whole = cuda_pod("whole", 1000, program)
    cluster.client.create(whole, namespace=namespace)
    wait_for_phase(cluster, namespace, "whole", "Succeeded")
    assert log_of(cluster, namespace, "whole").split() == ["1", "40960", "False"]


def test_a_pod_that_asked_for_no_gpu_has_none(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    program = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    bare = pod("bare", ["python3", "-c", program], image=images.CUDA.reference)
    cluster.client.create(bare, namespace=namespace)
    wait_for_phase(cluster, namespace, "bare", "Failed")
    assert "libcuda.so.1: cannot open shared object file" in log_of(cluster, namespace, "bare")


def test_a_pod_bound_without_the_scheduler_gets_no_gpu_and_an_event(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    stray = cuda_pod("stray", 100, MEMORY, nodeName=gpu_node.node.name)
    cluster.client.create(stray, namespace=namespace)
    text = until("an event", lambda: told(cluster, namespace, "stray", "NoGrant") or None, 60)
    assert "bound without a grant" in text


def test_a_share_outlives_the_agent_and_its_death_frees_nothing_twice(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    cluster.client.create(cuda_pod("stays", 600, HOLD), namespace=namespace)
    wait_for_word(cluster, namespace, "stays", "ready")
    gpu_node.agent.kill()
    gpu_node.start()
    cluster.client.create(cuda_pod("later", 600, MEMORY), namespace=namespace)
    wait_for_phase(cluster, namespace, "later", "Succeeded")
    assert wait_for_phase(cluster, namespace, "stays", "Running")
    containers = gpu_node.node.folder / "run/milligpu/containers"
    assert len(list(containers.iterdir())) >= 1
    cluster.client.delete(Pod, "stays", namespace=namespace)
    cluster.client.delete(Pod, "later", namespace=namespace)
    until("their folders to go", lambda: not list(containers.iterdir()), 60)


def test_an_xid_makes_the_gpu_unhealthy_until_it_is_cleared(gpu_node: GpuNode) -> None:
    folder = gpu_node.softgpu_folder
    inject_fault(folder, "1", {"xid": 79})
    until("the inventory to say so", lambda: gpu_node.inventory()[1].state is GpuState.UNHEALTHY, 30)
    assert "79" in gpu_node.inventory()[1].message
    until("its slots to go", lambda: gpu_node.allocatable(names.VGPU) == 1000, 30)
    inject_fault(folder, "1", {"clear": True})
    until("the card to be back", lambda: gpu_node.inventory()[1].state is GpuState.OK, 30)
    until("its slots to be back", lambda: gpu_node.allocatable(names.VGPU) == 2000, 30)


def test_a_running_pod_keeps_an_unhealthy_gpu_and_gets_an_event(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    cluster.client.create(cuda_pod("stays", 600, HOLD), namespace=namespace)
    wait_for_word(cluster, namespace, "stays", "ready")
    (card,) = grants(cluster, namespace)["stays"].gpus
    number = [gpu.uuid for gpu in gpu_node.inventory()].index(card)

    def reported() -> bool:
        wanted = f'milligpu_container_on_unhealthy_gpu{{Hostname="{gpu_node.node.name}"'
        lines = [line for line in gpu_node.page("metrics").splitlines() if line.startswith(wanted)]
        return any('pod="stays"' in line and line.endswith(" 1.0") for line in lines)

    assert not reported()
    inject_fault(gpu_node.softgpu_folder, str(number), {"xid": 79})
    try:
        text = until("an event", lambda: told(cluster, namespace, "stays", "GPUUnhealthy") or None, 30)
        assert card in text
        assert "79" in text
        until("the metric", reported, 30)
        assert wait_for_phase(cluster, namespace, "stays", "Running")
    finally:
        inject_fault(gpu_node.softgpu_folder, str(number), {"clear": True})
    until("the card to be well", lambda: not reported(), 30)


def test_an_admin_cordons_and_uncordons_one_gpu(gpu_node: GpuNode) -> None:
    card = gpu_node.inventory()[0].uuid
    program = str(Path(sys.executable).with_name("milligpu"))
    kubeconfig = ["--kubeconfig", str(gpu_node.cluster.kubeconfig)]

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [program, "gpu", *words, *kubeconfig]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("cordon", card, "--reason", "noisy fan").returncode == 0
    until("the card to be out", lambda: gpu_node.inventory()[0].state is GpuState.CORDONED, 30)
    assert gpu_node.inventory()[0].message == "noisy fan"
    back = run("uncordon", card.removeprefix("GPU-")[:8])
    assert (back.returncode, back.stdout) == (0, f"{card} on {gpu_node.node.name}: uncordoned\n")
    until("the card to be back", lambda: gpu_node.inventory()[0].state is GpuState.OK, 30)
    inject_fault(gpu_node.softgpu_folder, "0", {"temperature": 95})
    until("the heat to be seen", lambda: gpu_node.inventory()[0].state is GpuState.UNHEALTHY, 30)
    assert "uncordoned, but it stays unhealthy: too hot: 95 degrees" in run("uncordon", card).stdout
    inject_fault(gpu_node.softgpu_folder, "0", {"clear": True})
    until("the card to be cool", lambda: gpu_node.inventory()[0].state is GpuState.OK, 30)
    unknown = run("cordon", "GPU-none")
    assert unknown.returncode == 2
    assert card in unknown.stderr
