"""Newer features: libraries, memory pools, extended launches, 2D copies. Prints {case: true or false}."""

import ctypes
import json

import numpy as np
from driver import check, download, driver, ptx, start, upload

SOURCE = """
__device__ int offset = 5;
extern "C" __global__ void add(int *p, int v) { p[threadIdx.x] += v + offset; }
"""
N = 64


def main() -> None:
    start()
    found: dict[str, bool] = {}
    text = ctypes.create_string_buffer(ptx(SOURCE))
    library = check(driver.cuLibraryLoadData(ctypes.addressof(text), [], [], 0, [], [], 0))
    kernel = check(driver.cuLibraryGetKernel(library, b"add"))
    found["one handle per kernel"] = int(kernel) == int(check(driver.cuLibraryGetKernel(library, b"add")))
    found["a kernel that is not there"] = (
        driver.cuLibraryGetKernel(library, b"sub")[0].name == "CUDA_ERROR_NOT_FOUND"
    )
    prefer = driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
    found["advice about a kernel's caches"] = not int(driver.cuKernelSetCacheConfig(kernel, prefer, 0)[0])

    stream = check(driver.cuStreamCreate(0))
    pool = check(driver.cuDeviceGetMemPool(0))
    pointer = check(driver.cuMemAllocFromPoolAsync(4 * N, pool, stream))
    check(driver.cuMemsetD32Async(pointer, 1, N, stream))
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX, config.hStream = N, stream
    function = driver.CUfunction(int(kernel))
    check(driver.cuLaunchKernelEx(config, function, ((pointer, 2), (None, ctypes.c_int)), 0))
    check(driver.cuStreamSynchronize(stream))
    found["a kernel of a library, launched on a pool's memory"] = bool(
        (download(pointer, np.zeros(N, np.int32)) == 8).all()
    )

    address, size = check(driver.cuLibraryGetGlobal(library, b"offset"))
    check(driver.cuMemcpyHtoD(address, np.array([100], np.int32).ctypes.data, size))
    check(driver.cuLaunchKernelEx(config, function, ((pointer, 0), (None, ctypes.c_int)), 0))
    check(driver.cuStreamSynchronize(stream))
    found["a global that the host changed"] = bool((download(pointer, np.zeros(N, np.int32)) == 108).all())

    before = check(driver.cuMemGetInfo())[0]
    check(driver.cuMemFreeAsync(pointer, stream))
    check(driver.cuStreamSynchronize(stream))
    found["memory that is freed in a stream is free"] = check(driver.cuMemGetInfo())[0] == before + 4096

    image = np.arange(8 * 16, dtype=np.int32).reshape(8, 16)
    copied = upload(np.zeros((4, 4), np.int32))
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcHost, copy.srcPitch, copy.srcXInBytes, copy.srcY = image.ctypes.data, 64, 4 * 3, 2
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstDevice, copy.dstPitch, copy.WidthInBytes, copy.Height = copied, 16, 16, 4
    check(driver.cuMemcpy2D(copy))
    found["a rectangle is copied"] = bool((download(copied, np.zeros((4, 4), np.int32)) == image[2:6, 3:7]).all())
    copy.Height = 2000
    found["a rectangle that does not fit is refused"] = (
        driver.cuMemcpy2D(copy)[0].name == "CUDA_ERROR_INVALID_VALUE"
    )

    check(driver.cuLibraryUnload(library))
    found["a kernel of an unloaded library"] = (
        driver.cuLaunchKernelEx(config, function, ((pointer, 0), (None, ctypes.c_int)), 0)[0].name
        == "CUDA_ERROR_INVALID_HANDLE"
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
