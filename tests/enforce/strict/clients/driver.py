"""The driver API through ctypes for programs on the strict driver, and what that driver counts."""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
strict = ctypes.CDLL(os.environ["STRICT_DRIVER"])
strict.strict_memory.restype = c_uint64
LEGACY, PER_THREAD, NON_BLOCKING = c_void_p(1), c_void_p(2), 1
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def check(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA error {status}")


def calls() -> int:
    """How many calls the driver got so far."""
    return c_uint64.in_dll(strict, "strict_calls").value


def launches() -> int:
    return c_uint64.in_dll(strict, "strict_launches").value


def start(device: int = 0) -> c_void_p:
    check(cuda.cuInit(0))
    return new_context(device)


def new_context(device: int = 0) -> c_void_p:
    made = c_void_p()
    check(cuda.cuCtxCreate_v2(byref(made), 0, device))
    return made


def primary(device: int = 0) -> c_void_p:
    made = c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(byref(made), device))
    check(cuda.cuCtxSetCurrent(made))
    return made


def functions(*names: str) -> list[c_void_p]:
    """Kernels by name: "us5" takes 5 us, "forever" does not end."""
    module = c_void_p()
    found: list[c_void_p] = []
    check(cuda.cuModuleLoadData(byref(module), b"\0\0\0\0"))
    for name in names:
        made = c_void_p()
        check(cuda.cuModuleGetFunction(byref(made), module, name.encode()))
        found.append(made)
    return found


def new_stream(flags: int = NON_BLOCKING) -> c_void_p:
    made = c_void_p()
    check(cuda.cuStreamCreate(byref(made), flags))
    return made


def launch(function: c_void_p, stream: c_void_p | None = None, threads: int = 1) -> None:
    check(cuda.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, None, None))


__all__ = [
    "GLOBAL", "LEGACY", "NON_BLOCKING", "PER_THREAD", "RELAXED", "THREAD_LOCAL", "byref", "c_int", "c_size_t",
    "c_uint", "c_uint64", "c_void_p", "calls", "check", "cuda", "functions", "launch", "launches", "new_context",
    "new_stream", "primary", "start", "strict",
]  # fmt: skip
