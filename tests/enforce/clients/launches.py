"""Call each launch and copy function from a thread of its own and print which returned; then print once more.

Runs on a driver that does nothing. Reads a line before the second report, so that a test can change the limits
page.
"""

import ctypes
import json
import sys
import threading

from cuda import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, check, cuda

LARGE, SMALL = 1 << 20, 1 << 10
ZERO = ctypes.create_string_buffer(1 << 16)
SHAPE = (c_void_p(1), *[c_uint(1)] * 6, c_uint(0), c_void_p())


class Flat(ctypes.Structure):
    """CUDA_MEMCPY2D of one MiB."""

    _fields_ = (("rest", c_size_t * 14), ("width", c_size_t), ("height", c_size_t))


def copy(size: int) -> tuple:
    return c_uint64(1), c_uint64(2), c_size_t(size)


WAITING = {
    "cuLaunchKernel": (*SHAPE, None, None),
    "cuLaunchKernel_ptsz": (*SHAPE, None, None),
    "cuLaunchKernelEx": (ZERO, c_void_p(1), None, None),
    "cuLaunchKernelEx_ptsz": (ZERO, c_void_p(1), None, None),
    "cuLaunchCooperativeKernel": (*SHAPE, None),
    "cuLaunchCooperativeKernel_ptsz": (*SHAPE, None),
    "cuLaunchCooperativeKernelMultiDevice": (ZERO, c_uint(1), c_uint(0)),
    "cuGraphLaunch": (c_void_p(1), c_void_p()),
    "cuGraphLaunch_ptsz": (c_void_p(1), c_void_p()),
    "cuLaunch": (c_void_p(1),),
    "cuLaunchGrid": (c_void_p(1), c_int(1), c_int(1)),
    "cuLaunchGridAsync": (c_void_p(1), c_int(1), c_int(1), c_void_p()),
    "cuMemcpyHtoD_v2": copy(LARGE),
    "cuMemcpyDtoH_v2_ptds": copy(LARGE),
    "cuMemcpyDtoDAsync_v2": (*copy(LARGE), c_void_p()),
    "cuMemcpy2D_v2": (byref(Flat((c_size_t * 14)(), 1 << 10, 1 << 10)),),
    "cuMemsetD32_v2": (c_uint64(1), c_uint(0), c_size_t(LARGE)),
    "cuMemsetD8Async_ptsz": (c_uint64(1), ctypes.c_ubyte(0), c_size_t(LARGE), c_void_p()),
    "cuMemPrefetchAsync": (c_uint64(1), c_size_t(LARGE), c_int(0), c_void_p()),
}
FREE = {
    "cuMemcpyHtoD_v2": copy(SMALL),
    "cuMemsetD8_v2": (c_uint64(1), ctypes.c_ubyte(0), c_size_t(SMALL)),
    "cuLaunchHostFunc": (c_void_p(), c_void_p(), c_void_p()),
    "cuEventRecord": (c_void_p(), c_void_p()),
}


def begin(name: str, arguments: tuple) -> tuple[str, threading.Thread]:
    thread = threading.Thread(target=getattr(cuda, name), args=arguments, daemon=True)
    thread.start()
    return name, thread


def running(threads: list[tuple[str, threading.Thread]], patience: float) -> list[str]:
    for _, thread in threads:
        thread.join(patience)
    return [name for name, thread in threads if thread.is_alive()]


def main() -> None:
    context = c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    free = [begin(*each) for each in FREE.items()]
    waiting = [begin(*each) for each in WAITING.items()]
    print(json.dumps({"free": running(free, 30), "returned": sorted(set(WAITING) - set(running(waiting, 0.05)))}))
    sys.stdout.flush()
    sys.stdin.readline()
    print(json.dumps({"still": running(waiting, 30)}))


if __name__ == "__main__":
    main()
