"""Order and time: streams, events, callbacks, graphs, peers. Prints {case: true or false} as JSON."""

import ctypes
import json
import threading

import numpy as np
from driver import check, download, driver, function, launch, load, ptx, start, upload

SOURCE = """
extern "C" __global__ void spin(volatile int *flag) { while (!*flag) {} }
extern "C" __global__ void add(int *p, int v) { p[blockIdx.x * blockDim.x + threadIdx.x] += v; }
extern "C" __global__ void twice(int *p) { p[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }
extern "C" __global__ void where(unsigned *p) { p[blockIdx.x] = blockIdx.x; }
"""
N = 256


def pinned(size: int) -> tuple[int, np.ndarray]:
    pointer = check(driver.cuMemHostAlloc(size, 0))
    return pointer, np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype=np.int32)


def main() -> None:
    context = start()
    module = load(ptx(SOURCE))
    spin, add, twice, where = (function(module, name) for name in ("spin", "add", "twice", "where"))
    data = upload(np.zeros(N, np.int32))
    flag, flag_view = pinned(4096)
    found: dict[str, bool] = {}

    first, second = (check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
    event = check(driver.cuEventCreate(0))
    begin, end = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
    check(driver.cuEventRecord(begin, first))
    launch(spin, 1, 1, driver.CUdeviceptr(flag), stream=first)
    launch(add, 1, N, data, 5, stream=first)
    check(driver.cuEventRecord(event, first))
    check(driver.cuEventRecord(end, first))
    check(driver.cuStreamWaitEvent(second, event, 0))
    launch(twice, 1, N, data, stream=second)
    found["a launch returns before its kernel ends"] = driver.cuStreamQuery(first)[0].name == "CUDA_ERROR_NOT_READY"
    found["an event is not reached early"] = driver.cuEventQuery(event)[0].name == "CUDA_ERROR_NOT_READY"
    found["a stream that waits for it does not run"] = (
        driver.cuStreamQuery(second)[0].name == "CUDA_ERROR_NOT_READY"
    )
    flag_view[0] = 1
    check(driver.cuStreamSynchronize(second))
    found["an event orders two streams"] = bool((download(data, np.zeros(N, np.int32)) == 10).all())
    check(driver.cuStreamSynchronize(first))
    found["events measure time"] = check(driver.cuEventElapsedTime(begin, end)) > 0

    flag_view[0] = 0
    blocking = check(driver.cuStreamCreate(0))
    launch(spin, 1, 1, driver.CUdeviceptr(flag), stream=blocking)
    launch(add, 1, N, data, 1)
    launch(twice, 1, N, data, stream=blocking)
    found["the default stream waits for blocking streams"] = (
        driver.cuStreamQuery(0)[0].name == "CUDA_ERROR_NOT_READY"
    )
    flag_view[0] = 1
    check(driver.cuCtxSynchronize())
    found["and blocking streams for it"] = bool((download(data, np.zeros(N, np.int32)) == 22).all())

    called = threading.Event()
    host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.set())
    check(driver.cuLaunchHostFunc(first, driver.CUhostFn(_ptr=ctypes.addressof(host)), 0))
    check(driver.cuStreamSynchronize(first))
    found["a host function runs in its stream"] = called.is_set()

    graph = check(driver.cuGraphCreate(0))
    parameters = driver.CUDA_KERNEL_NODE_PARAMS()
    parameters.func, parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = add, 1, 1, 1
    parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = N, 1, 1
    parameters.kernelParams = ((data, 3), (None, ctypes.c_int))
    node = check(driver.cuGraphAddKernelNode(graph, None, 0, parameters))
    parameters.func, parameters.kernelParams = twice, ((data,), (None,))
    check(driver.cuGraphAddKernelNode(graph, [node], 1, parameters))
    executable = check(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        check(driver.cuGraphLaunch(executable, first))
    check(driver.cuStreamSynchronize(first))
    found["a graph runs in order, as often as launched"] = bool(
        (download(data, np.zeros(N, np.int32)) == ((22 + 3) * 2 + 3) * 2).all()
    )

    blocks = 100_000
    places = upload(np.zeros(blocks, np.uint32))
    launch(where, blocks, 1, places)
    found["every block of a large grid runs once"] = bool(
        (download(places, np.zeros(blocks, np.uint32)) == np.arange(blocks)).all()
    )

    check(driver.cuDevicePrimaryCtxRetain(1))
    other = check(driver.cuCtxCreate(None, 0, 1))
    copy = check(driver.cuMemAlloc(4 * N))
    check(driver.cuMemcpyPeer(copy, other, data, context, 4 * N))
    found["a copy between two GPUs"] = bool((download(copy, np.zeros(N, np.int32)) == 106).all())
    found["contexts take memory"] = check(driver.cuMemGetInfo())[0] < check(driver.cuMemGetInfo())[1] - 4 * N
    print(json.dumps(found))


if __name__ == "__main__":
    main()
