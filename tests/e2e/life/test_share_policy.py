"""Share policies on the real node: who gets idle time, in every dialect that has limits, and who sets it."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from devcluster import images
from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.policy import SharePolicy
from milligpu.wire.status import decode_status
from tests.e2e.life.conftest import milligpu
from tests.e2e.platform.pods import wait_running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# It keeps the GPU busy with kernels that sleep: they take GPU time and no CPU time. It hardly ever waits for them,
# so a busy machine does not cost it its turns.
BUSY = '''
import ctypes
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nap(.param .u32 ns)
{
.reg .b32 %r<2>;
ld.param.u32 %r1, [ns];
nanosleep.u32 %r1;
ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    assert code == 0, code
context, module, nap = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(nap), module, b"nap"))
length = ctypes.c_uint32(5_000_000)
arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
one, none = ctypes.c_uint(1), ctypes.c_uint(0)
while True:
    for _ in range(256):
        check(cuda.cuLaunchKernel(nap, one, one, one, one, one, one, none, None, arguments, None))
    check(cuda.cuCtxSynchronize())
'''
# All are busy at the same time on one GPU, so those without idle time get their shares, and the others the rest.
# Each has 40 milli-GPU, except where a dialect has only tenths.
DIALECTS: dict[str, dict[str, Any]] = {
    "native": {"annotations": {names.LIMIT: "1000"}, "limits": {names.VGPU: 40}},
    "kubeshare": {
        "labels": {"sharedgpu/gpu_request": "0.04", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_mem": "1073741824"}
    },
    "gpumanager": {
        "annotations": {"tencent.com/vcuda-core-limit": "100"},
        "limits": {"tencent.com/vcuda-core": 4, "tencent.com/vcuda-memory": 4},
    },
    "hami": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1639}},
    "bitfusion": {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": 4}},
    "kai": {"annotations": {"gpu-fraction": "0.04"}},
    "gpushare": {"limits": {"aliyun.com/gpu-mem": 2}},
    "deepomatic": {"limits": {"deepomatic.com/shared-gpu": 1}},
}
LIMITED: dict[str, dict[str, Any]] = {
    "native-limited": {"limits": {names.VGPU: 40}},
    "fixed-limited": {"annotations": {names.POLICY: "fixed"}, "limits": {names.VGPU: 40}},
    "kubeshare-limited": {
        "labels": {
            "sharedgpu/gpu_request": "0.04",
            "sharedgpu/gpu_limit": "0.04",
            "sharedgpu/gpu_mem": "1073741824",
        }
    },
    "gpumanager-limited": {"limits": {"tencent.com/vcuda-core": 4, "tencent.com/vcuda-memory": 4}},
    "hami-limited": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1639, "nvidia.com/gpucores": 4}},
}


def start(node: GpuNode, namespace: str, pods: dict[str, dict[str, Any]]) -> None:
    made: list[dict[str, Any]] = []
    for name, what in pods.items():
        container: dict[str, Any] = {"name": "main", "image": images.CUDA.reference}
        container |= {"command": ["python3", "-c", BUSY], "resources": {"limits": what.get("limits", {})}}
        meta = {"name": name, "annotations": what.get("annotations", {}), "labels": what.get("labels", {})}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    node.cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(made))


def gpu_time(node: GpuNode) -> dict[str, tuple[int, int]]:
    """The share of each pod and the GPU time that the arbiter charged it, in nanoseconds."""
    status = decode_status(node.page("stats").encode())
    return {use.pod: (use.milli, use.gpu_time_ns or 0) for use in status.shares}


def stretch(node: GpuNode, least: str) -> dict[str, float]:
    """GPU time of each pod per milli-GPU of its share, while `least` gets half a second: 1 is what `least` gets."""
    before = gpu_time(node)

    def passed() -> dict[str, tuple[int, int]] | None:
        now = gpu_time(node)
        return now if now[least][1] - before[least][1] > 500_000_000 else None

    after = until(f"{least} to get half a second of the GPU", passed, 120)
    per_milli = {pod: (used - before[pod][1]) / milli for pod, (milli, used) in after.items()}
    return {pod: value / per_milli[least] for pod, value in per_milli.items()}


def wait_for_shares(node: GpuNode, what: str, wrong: Callable[[dict[str, float]], dict[str, float]]) -> None:
    """Wait for a stretch of time in which no pod got a `wrong` part of the GPU.

    A busy machine makes single kernels longer and tenants late, so a stretch may be wrong; but where shares are not
    held, every stretch is.
    """
    last: dict[str, float] = {}

    def right() -> bool:
        nonlocal last
        last = wrong(stretch(node, "native-limited"))
        return not last

    until(what, right, 150, last_state=lambda: f"wrong in the last stretch: {last}")


def settle(node: GpuNode, policy: str) -> None:
    """Set the policy, and wait until the agent has published it."""
    done = milligpu(node, "gpu", "policy", node.node.name, policy)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = SharePolicy.BEST_EFFORT if policy == "default" else SharePolicy(policy)
    until(f"the policy {policy}", lambda: {gpu.policy for gpu in node.inventory()} == {wanted}, 30)


def test_idle_time_goes_to_those_whose_limit_allows_it_and_the_gpus_policy_is_obeyed_at_once(
    gpu_node: GpuNode, namespace: str
) -> None:
    start(gpu_node, namespace, {**DIALECTS, **LIMITED})
    wait_running(gpu_node.cluster, namespace, len(DIALECTS) + len(LIMITED))
    until("all of them to compute", lambda: all(used > 0 for _, used in gpu_time(gpu_node).values()), 60)
    wait_for_shares(
        gpu_node,
        "more than the share where the limit allows it",
        lambda got: {pod: got[pod] for pod in DIALECTS if got[pod] < 1.3},
    )
    wait_for_shares(
        gpu_node,
        "no more than the share where the limit is the share",
        lambda got: {pod: got[pod] for pod in LIMITED if not 0.75 < got[pod] < 1.25},
    )

    settle(gpu_node, "fixed")
    wait_for_shares(
        gpu_node,
        "no pod to get more than it requested",
        lambda got: {pod: value for pod, value in got.items() if not 0.75 < value < 1.25},
    )
    assert "share policy of the GPU: fixed" in milligpu(gpu_node, "-n", namespace, "explain", "native").stdout

    settle(gpu_node, "default")
    wait_for_shares(
        gpu_node, "idle time again", lambda got: {"native": got["native"]} if got["native"] < 1.3 else {}
    )
