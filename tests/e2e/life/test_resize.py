"""A running pod gets another share: the same process, without a restart, sees it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ResourceQuota

from devcluster import images
from devcluster.api import patch_in, read_json
from devcluster.fixtures import new_namespace
from devcluster.platform import GpuNode
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.life.conftest import milligpu
from tests.e2e.scheduling import grant_of, told

pytestmark = pytest.mark.e2e

# It says what it sees of its GPU whenever that changes, and allocates and frees MiB as it is told on a file.
PROGRAM = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    assert code == 0, code
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
block, total, free, shown = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t(), None
while True:
    order = open("/tmp/order").read().split() if os.path.exists("/tmp/order") else []
    if order:
        os.remove("/tmp/order")
    if order[:1] == ["take"]:
        size = ctypes.c_size_t(int(order[1]) << 20)
        print("take", order[1], cuda.cuMemAlloc_v2(ctypes.byref(block), size), flush=True)
    if order[:1] == ["give"]:
        print("give", cuda.cuMemFree_v2(block), flush=True)
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    if shown != total.value >> 20:
        shown = total.value >> 20
        print("total", shown, os.getpid(), flush=True)
    time.sleep(0.05)
"""
OUT_OF_MEMORY = 2


def start(gpu_node: GpuNode, namespace: str, name: str, milli: int, mib: int) -> None:
    resources = {names.VGPU: str(milli), names.VGPU_MEMORY: str(mib)}
    made = pod(name, ["python3", "-c", PROGRAM], resources=resources, image=images.CUDA.reference)
    gpu_node.cluster.client.create(made, namespace=namespace)
    wait_for_phase(gpu_node.cluster, namespace, name, "Running")
    says(gpu_node, namespace, name, f"total {mib} ")


def says(gpu_node: GpuNode, namespace: str, name: str, words: str) -> str:
    cluster = gpu_node.cluster

    def line() -> str | None:
        said = "\n".join(cluster.client.log(name, namespace=namespace)).splitlines()
        return next((each for each in reversed(said) if each.startswith(words)), None)

    return until(f"{name} to say {words!r}", line, 60)


def order(gpu_node: GpuNode, namespace: str, name: str, words: str) -> None:
    write = f"echo {words} > /tmp/order.new && mv /tmp/order.new /tmp/order"
    gpu_node.cluster.kubectl("exec", "-n", namespace, name, "--", "sh", "-c", write)


def annotate(gpu_node: GpuNode, namespace: str, name: str, text: str) -> None:
    note = {"metadata": {"annotations": {names.RESIZE: text}}}
    patch_in(gpu_node.cluster.client, Pod, namespace, name, note)


def metric(gpu_node: GpuNode, name: str, pod_name: str) -> float | None:
    text = gpu_node.page("metrics")
    found = [line for line in text.splitlines() if line.startswith(name) and f'pod="{pod_name}"' in line]
    return float(found[0].rpartition(" ")[2]) if found else None


def generation(gpu_node: GpuNode, namespace: str, name: str) -> int:
    grant = grant_of(gpu_node.cluster.client.get(Pod, name, namespace=namespace))
    assert grant is not None
    return grant.generation


def test_a_running_process_sees_its_new_share(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 300, 4096)
    pid = says(gpu_node, namespace, "a", "total 4096").split()[2]
    annotate(gpu_node, namespace, "a", json.dumps({"main": {"milli": 600, "mib": 8192}}))
    assert says(gpu_node, namespace, "a", "total 8192").split()[2] == pid
    assert metric(gpu_node, "milligpu_container_share_ratio", "a") == 0.6
    assert "0.6 with 8Gi" in until(
        "an event", lambda: told(gpu_node.cluster, namespace, "a", "Resized") or None, 30
    )
    # Taken away, slots that a pod was just placed by would end it: the kubelet rejects for good.
    assert gpu_node.allocatable(names.VGPU) == 1000

    less = milligpu(gpu_node, "-n", namespace, "resize", "pod/a", "-p", "0.1", "-m", "1Gi")
    assert (less.returncode, less.stderr) == (0, "")
    assert "0.1 with 1Gi" in less.stdout
    assert says(gpu_node, namespace, "a", "total 1024").split()[2] == pid
    assert generation(gpu_node, namespace, "a") == 3
    until("the kubelet to count the rest", lambda: gpu_node.allocatable(names.VGPU) == 300 + 900, 30)

    start(gpu_node, namespace, "b", 900, 39936)
    assert metric(gpu_node, "milligpu_container_share_ratio", "b") == 0.9


@pytest.fixture
def slow_reports(gpu_node: GpuNode) -> Iterator[None]:
    """A kubelet that reports changes every ten seconds, as it does by default."""

    def restart(every_s: int) -> None:
        gpu_node.node.restart_kubelet(status_every_s=every_s)
        until("the agent to be known to the new kubelet", registered, 60)
        until("the kubelet's slots", lambda: gpu_node.allocatable(names.VGPU) >= 1000, 60)
        # Until the kubelet has seen the first list of its pods, it counts slots of pods that are gone.
        with new_namespace(gpu_node.cluster) as namespace:
            gpu_node.cluster.client.create(pod("first"), namespace=namespace)
            wait_for_phase(gpu_node.cluster, namespace, "first", "Running")

    def registered() -> bool:
        """Whether this kubelet has counted a registration: a report may still be that of the one before."""
        metrics = f"/api/v1/nodes/{gpu_node.node.name}/proxy/metrics"
        found = gpu_node.cluster.kubectl("get", "--raw", metrics, check=False)
        return f'kubelet_device_plugin_registration_total{{resource_name="{names.VGPU}"}}' in found

    restart(10)
    yield
    restart(1)


@pytest.mark.usefixtures("slow_reports")
def test_slots_freed_by_a_shrink_are_reported_before_the_kubelet_does(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 900, 4096)

    def reporters() -> list[str]:
        """Who wrote the number of slots; the kubelet, too, if it happened to report at that moment."""
        path = f"/api/v1/nodes/{gpu_node.node.name}"
        managed = read_json(gpu_node.cluster.client, path)["metadata"]["managedFields"]
        written = {each["manager"]: each["fieldsV1"].get("f:status", {}) for each in managed}
        return [name for name, status in written.items() if f"f:{names.VGPU}" in status.get("f:allocatable", {})]

    seen: set[str] = set()
    for milli in (600, 500, 400):
        annotate(gpu_node, namespace, "a", json.dumps({"main": {"milli": milli}}))
        until("the freed slots", lambda want=1000 + 900 - milli: gpu_node.allocatable(names.VGPU) == want, 30)
        seen.update(reporters())
    assert "milligpu" in seen

    start(gpu_node, namespace, "b", 600, 4096)


def test_growth_beyond_what_is_free_waits_until_it_is_free(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 400, 4096)
    start(gpu_node, namespace, "b", 500, 4096)
    more = milligpu(gpu_node, "-n", namespace, "resize", "pod/a", "-p", "0.8")
    assert more.returncode == 75
    assert "has 0.1 of 0.4 GPU that it wants in addition" in more.stderr
    assert generation(gpu_node, namespace, "a") == 1
    assert "InsufficientGPUCore" in until(
        "an event", lambda: told(gpu_node.cluster, namespace, "a", "ResizeWaits") or None, 30
    )
    explained = milligpu(gpu_node, "-n", namespace, "explain", "a").stdout
    assert "0.4 with 4Gi" in explained
    assert "has 0.1 of 0.4 GPU that it wants in addition" in explained
    gpu_node.cluster.client.delete(Pod, "b", namespace=namespace, grace_period=0)
    until("its turn", lambda: metric(gpu_node, "milligpu_container_share_ratio", "a") == 0.8, 60)


def test_memory_in_use_above_a_lowered_memory_limit_is_not_granted_to_another_pod(
    gpu_node: GpuNode, namespace: str
) -> None:
    start(gpu_node, namespace, "a", 500, 20480)
    order(gpu_node, namespace, "a", "take 4096")
    assert says(gpu_node, namespace, "a", "take 4096") == "take 4096 0"
    annotate(gpu_node, namespace, "a", '{"main": {"mib": 1024}}')
    says(gpu_node, namespace, "a", "total 1024")
    order(gpu_node, namespace, "a", "take 1")
    assert says(gpu_node, namespace, "a", "take 1 ") == f"take 1 {OUT_OF_MEMORY}"

    resources = {names.VGPU: "500", names.VGPU_MEMORY: "38912"}
    late = pod("late", ["python3", "-c", PROGRAM], resources=resources, image=images.CUDA.reference)
    gpu_node.cluster.client.create(late, namespace=namespace)
    until(
        "a word on why it waits", lambda: told(gpu_node.cluster, namespace, "late", "GPUOverCommitted") or None, 60
    )
    order(gpu_node, namespace, "a", "give")
    wait_for_phase(gpu_node.cluster, namespace, "late", "Running")


def test_a_mistake_and_a_way_past_a_quota_are_answered(gpu_node: GpuNode, namespace: str) -> None:
    cluster = gpu_node.cluster
    hard: Any = {"requests.nvidia.com/vgpu": "500"}
    quota = ResourceQuota(metadata=ObjectMeta(name="gpus"), spec=ResourceQuotaSpec(hard=hard))
    cluster.client.create(quota, namespace=namespace)
    start(gpu_node, namespace, "a", 300, 4096)
    annotate(gpu_node, namespace, "a", '{"main": {"milli": 3000}}')
    assert "0 to 1000" in until("an event", lambda: told(cluster, namespace, "a", "BadResize") or None, 30)
    annotate(gpu_node, namespace, "a", '{"main": {"milli": 600}}')
    until("another", lambda: "quota gpus" in told(cluster, namespace, "a", "BadResize"), 30)
    for more, why in ((["-p", "0.7"], "quota gpus"), (["-m", "80Gi"], "must be at most 40Gi, which is all that")):
        refused = milligpu(gpu_node, "-n", namespace, "resize", "pod/a", *more)
        assert refused.returncode == 2, refused
        assert why in refused.stderr
    annotate(gpu_node, namespace, "a", '{"main": {"mib": 81920}}')
    until("a third", lambda: "has 40Gi of 80Gi" in told(cluster, namespace, "a", "BadResize"), 30)
    start(gpu_node, namespace, "b", 200, 4096)
    no_room = '{"main": {"milli": 900}}'
    annotate(gpu_node, namespace, "a", no_room)

    def quota_named() -> bool:
        last = told(cluster, namespace, "a", "BadResize")
        return "quota gpus" in last and no_room in last

    until("the quota to be named, although there is no room either", quota_named, 30)
    assert told(cluster, namespace, "a", "ResizeWaits") == ""
    assert "quota gpus" in milligpu(gpu_node, "-n", namespace, "explain", "a").stdout
    assert generation(gpu_node, namespace, "a") == 1
    annotate(gpu_node, namespace, "a", '{"main": {"milli": 200}}')
    until("less to be granted", lambda: generation(gpu_node, namespace, "a") == 2, 30)
    annotate(gpu_node, namespace, "a", '{"main": {"milli": 300}}')
    until("all it was made with", lambda: generation(gpu_node, namespace, "a") == 3, 30)


def test_only_the_scheduler_can_write_a_later_generation(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 300, 4096)
    forged = {"metadata": {"annotations": {names.GRANT: '{"v":1,"gen":9}'}}}
    with pytest.raises(ApiError, match="may write or remove"):
        patch_in(gpu_node.cluster.client, Pod, namespace, "a", forged)


def test_a_resize_outlives_the_agent(gpu_node: GpuNode, namespace: str) -> None:
    start(gpu_node, namespace, "a", 300, 4096)
    gpu_node.agent.kill()
    annotate(gpu_node, namespace, "a", '{"main": {"mib": 2048}}')
    until("the grant", lambda: generation(gpu_node, namespace, "a") == 2, 30)
    gpu_node.start()
    says(gpu_node, namespace, "a", "total 2048")
