"""Pods that keep a GPU busy, and how much of its time each of them gets."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from devcluster import images
from devcluster.cluster import Cluster
from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.wire.status import decode_status

# It keeps the GPU busy with kernels that sleep: they take GPU time and no CPU time. It always has a batch or two in
# the queue. If it waited until its queue is empty, a busy machine would let it go on late, and others had its time.
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
ends = [ctypes.c_void_p(), ctypes.c_void_p()]
for end in ends:
    check(cuda.cuEventCreate(ctypes.byref(end), ctypes.c_uint(0)))
def queue(end):
    for _ in range(100):
        check(cuda.cuLaunchKernel(nap, one, one, one, one, one, one, none, None, arguments, None))
    check(cuda.cuEventRecord(end, None))
queue(ends[0])
while True:
    for last, end in (ends, ends[::-1]):
        queue(end)
        check(cuda.cuEventSynchronize(last))
'''
BUSY_S = 60.0
"""By when a pod that runs has got its first time of the GPU."""
MEASURED_NS = 500_000_000
"""How much of the GPU the reference gets while shares are measured: a hundred kernels."""
STRETCH_S = 120.0
"""By when it has got that. On a busy machine a pod with a few hundredths of a GPU needs a while."""
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time in which one pod, the reference, got a certain amount of the GPU."""

    parts: dict[str, float]
    """GPU time of each pod, where 1 is that of the reference."""
    busy: float
    """The part of the time in which the GPU worked for the pods; the rest was lost, or left by their limits."""

    def __str__(self) -> str:
        parts = ", ".join(f"{pod} {part:.2f}" for pod, part in self.parts.items())
        return f"GPU busy for {self.busy:.2f} of the time; {parts}"


def stretch(node: GpuNode, namespace: str, reference: str) -> Stretch:
    """Measure while `reference` gets `MEASURED_NS` of the GPU."""
    begun, before = time.monotonic_ns(), gpu_time(node, namespace)

    def passed() -> dict[str, tuple[int, int]] | None:
        now = gpu_time(node, namespace)
        return now if now[reference][1] - before[reference][1] > MEASURED_NS else None

    after = until(f"{reference} to get {MEASURED_NS / 1e9:g} s of the GPU", passed, STRETCH_S)
    spent = {pod: used - before[pod][1] for pod, (_, used) in after.items()}
    return Stretch(
        {pod: used / spent[reference] for pod, used in spent.items()},
        sum(spent.values()) / (time.monotonic_ns() - begun),
    )


def wait_for_shares(
    node: GpuNode, namespace: str, reference: str, what: str, wrong: Callable[[dict[str, float]], dict[str, float]]
) -> None:
    """Wait for a stretch of time in which no pod got a `wrong` part of the GPU, where 1 is that of `reference`.

    A busy machine makes single kernels longer and tenants late, so a stretch may be wrong; but where shares are not
    held, every stretch is.
    """
    seen: list[Stretch] = []

    def right() -> bool:
        seen.append(stretch(node, namespace, reference))
        return not wrong(seen[-1].parts)

    until(what, right, SHARES_S, last_state=lambda: "\n".join(map(str, seen)))
