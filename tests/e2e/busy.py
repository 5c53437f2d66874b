"""Pods that keep a GPU busy, and how much of its time each of them gets."""

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.wire.status import decode_status

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
BUSY_S = 60.0
"""By when a pod that runs has got its first time of the GPU."""
STRETCH_S = 120.0
"""By when a pod has got half a second of the GPU. On a busy machine one that has 0.04 of it needs a while."""
SHARES_S = 150.0


def busy_pods(pods: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Pods by name, each with the annotations, labels and limits that it is given; or SharePods of KubeShare 1."""
    made: list[dict[str, Any]] = []
    for name, what in pods.items():
        container: dict[str, Any] = {"name": "main", "image": images.CUDA.reference}
        container |= {"command": ["python3", "-c", BUSY], "resources": {"limits": what.get("limits", {})}}
        meta = {"name": name, "annotations": what.get("annotations", {}), "labels": what.get("labels", {})}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        version = {"Pod": "v1", "SharePod": "kubeshare.nthu/v1"}
        kind: str = what.get("kind", "Pod")
        made.append({"apiVersion": version[kind], "kind": kind, "metadata": meta, "spec": spec})
    return made


def start_busy(cluster: Cluster, namespace: str, pods: Mapping[str, Mapping[str, Any]]) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(busy_pods(pods)))


def gpu_time(node: GpuNode, namespace: str) -> dict[str, tuple[int, int]]:
    """The share of each pod and the GPU time that the arbiter charged it, in nanoseconds."""
    status = decode_status(node.page("stats").encode())
    return {use.pod: (use.milli, use.gpu_time_ns or 0) for use in status.shares if use.namespace == namespace}


def wait_busy(node: GpuNode, namespace: str, count: int) -> None:
    """Wait until so many pods have had time of their GPU."""

    def computing() -> bool:
        found = gpu_time(node, namespace)
        return len(found) == count and all(used > 0 for _, used in found.values())

    until(
        f"{count} pods to compute",
        computing,
        BUSY_S,
        last_state=lambda: f"share and GPU time: {gpu_time(node, namespace)}",
    )


def stretch(node: GpuNode, namespace: str, reference: str) -> dict[str, float]:
    """GPU time of each pod while `reference` gets half a second: 1 is what `reference` gets."""
    before = gpu_time(node, namespace)

    def passed() -> dict[str, tuple[int, int]] | None:
        now = gpu_time(node, namespace)
        return now if now[reference][1] - before[reference][1] > 500_000_000 else None

    after = until(f"{reference} to get half a second of the GPU", passed, STRETCH_S)
    spent = {pod: used - before[pod][1] for pod, (_, used) in after.items()}
    return {pod: used / spent[reference] for pod, used in spent.items()}


def wait_for_shares(
    node: GpuNode, namespace: str, reference: str, what: str, wrong: Callable[[dict[str, float]], dict[str, float]]
) -> None:
    """Wait for a stretch of time in which no pod got a `wrong` part of the GPU.

    A busy machine makes single kernels longer and tenants late, so a stretch may be wrong; but where shares are not
    held, every stretch is.
    """
    seen: list[dict[str, float]] = []

    def right() -> bool:
        got = stretch(node, namespace, reference)
        seen.append({pod: round(value, 2) for pod, value in got.items()})
        return not wrong(got)

    def last_state() -> str:
        lines = [f"time of each pod, where 1 is that of {reference}, in each stretch:", *map(str, seen)]
        return "\n".join([*lines, f"wrong in the last one: {wrong(seen[-1]) if seen else 'nothing measured'}"])

    until(what, right, SHARES_S, last_state=last_state)
