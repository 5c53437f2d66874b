"""Open the driver and fork; parent and child launch kernels of 1 ms without pause until killed.

Each prints its PID when it is about to launch. It forks before cuInit, because a child forked later cannot use
CUDA.
"""

import ctypes
import os

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nap()
{
    nanosleep.u32 998000;
    ret;
}
"""


def check(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA error {status}")


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    os.fork()
    context, module, nap = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(nap), module, b"nap"))
    os.write(1, f"{os.getpid()}\n".encode())
    while True:
        check(cuda.cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, None, None, None))


if __name__ == "__main__":
    main()
