"""The driver API through ctypes, for programs that must not depend on how a binding behaves."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
OUT_OF_MEMORY = 2
MIB = 1 << 20


def check(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA error {status}")


def start(device: int = 0) -> c_void_p:
    check(cuda.cuInit(0))
    context = c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    return context


def memory() -> tuple[int, int]:
    """Return free and total bytes."""
    free, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value


def allocate(size: int) -> tuple[int, int]:
    """Return status and pointer."""
    pointer = c_uint64()
    return cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)), pointer.value


def free(pointer: int) -> int:
    return cuda.cuMemFree_v2(c_uint64(pointer))


__all__ = [
    "MIB", "OUT_OF_MEMORY", "allocate", "byref", "c_int", "c_size_t", "c_uint", "c_uint64", "c_void_p", "check",
    "cuda", "free", "memory", "start",
]  # fmt: skip
