"""Kernels that use host and managed memory, and captured copies of it. Prints {case: true or false} as JSON."""

import ctypes
import json

import numpy as np
from driver import check, download, driver, function, launch, load, ptx, start, upload

SOURCE = """
extern "C" __global__ void add(int *to, const int *from, int n) {
  int at = blockIdx.x * blockDim.x + threadIdx.x; if (at < n) to[at] += from[at]; }
"""
N = 50_000
BYTES = 4 * N
found: dict[str, bool] = {}


def view(address: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * BYTES).from_address(address), dtype=np.int32)


def add(kernel, to: int, source: int) -> None:
    pointers = (driver.CUdeviceptr(to), driver.CUdeviceptr(source), N)
    launch(kernel, -(-N // 256), 256, *pointers)


def used_by_kernels(name: str, kernel, first: int, second: int) -> None:
    """Two pieces of memory that both sides change in turn."""
    left, right = view(first), view(second)
    left[:], right[:] = 1, np.arange(N)
    add(kernel, first, second)
    check(driver.cuCtxSynchronize())
    once = bool((left == 1 + np.arange(N)).all())
    right[::7] += 3
    left[5] = 100
    add(kernel, first, second)
    add(kernel, second, first)
    check(driver.cuCtxSynchronize())
    want = 1 + 2 * np.arange(N)
    want[::7] += 3
    want[5] = 100 + 5
    source = np.arange(N)
    source[::7] += 3
    found[name] = once and bool((left == want).all()) and bool((right == source + want).all())


def copied_by_graphs(kernel, stream) -> None:
    """A graph copies what the host memory has when it is launched, and not what it had when it was captured."""
    given, result = (check(driver.cuMemHostAlloc(BYTES, 0)) for _ in range(2))
    device = upload(np.zeros(N, np.int32))
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    check(driver.cuMemcpyHtoDAsync(device, given, BYTES, stream))
    launch(kernel, -(-N // 256), 256, device, device, N, stream=stream)
    check(driver.cuMemcpyDtoHAsync(result, device, BYTES, stream))
    pageable = np.zeros(4, np.int32)
    refused = driver.cuMemcpyHtoDAsync(device, pageable.ctypes.data, 16, stream)[0]
    instance = check(driver.cuGraphInstantiate(check(driver.cuStreamEndCapture(stream)), 0))
    good = []
    for factor in (1, 5):
        view(given)[:] = factor * np.arange(N)
        check(driver.cuGraphLaunch(instance, stream))
        check(driver.cuStreamSynchronize(stream))
        good.append(bool((view(result) == 2 * factor * np.arange(N)).all()))
    found["captured copies"] = all(good)
    found["a captured copy of other memory is refused"] = refused.name == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"


def main() -> None:
    start()
    kernel = function(load(ptx(SOURCE)), "add")
    stream = check(driver.cuStreamCreate(1))
    pinned = [check(driver.cuMemHostAlloc(BYTES, 0)) for _ in range(2)]
    used_by_kernels("host memory", kernel, *pinned)
    everywhere = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    managed = [int(check(driver.cuMemAllocManaged(BYTES, everywhere))) for _ in range(2)]
    used_by_kernels("managed memory", kernel, *managed)
    own = [np.zeros(BYTES + 8192, np.uint8) for _ in range(2)]
    places = [each.ctypes.data + 4 for each in own]
    for place in places:
        check(driver.cuMemHostRegister(place, BYTES, 0))
    used_by_kernels("registered memory", kernel, *places)
    found["and nothing next to it"] = not any(each[:4].any() or each[BYTES + 4 :].any() for each in own)
    for place in places:
        check(driver.cuMemHostUnregister(place))
    used_by_kernels("host and managed memory", kernel, pinned[0], managed[0])
    copied_by_graphs(kernel, stream)
    for each in pinned:
        check(driver.cuMemFreeHost(each))
    for each in managed:
        check(driver.cuMemFree(each))
    device = upload(np.arange(N, dtype=np.int32))
    found["and device memory after all"] = bool((download(device, np.zeros(N, np.int32)) == np.arange(N)).all())
    print(json.dumps(found))


main()
