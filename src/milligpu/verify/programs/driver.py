"""The CUDA driver API through ctypes, for programs that must run with any Python and no package at all."""

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
NOT_SUPPORTED = (801, 500)
"""CUDA_ERROR_NOT_SUPPORTED, and CUDA_ERROR_NOT_FOUND, which older drivers answer."""


def check(status, call):
    """End the program with one line if a call failed."""
    if status:
        sys.exit(f"{call} answers CUDA error {status}")


def call(name, *arguments):
    """Call a function of the driver that must succeed."""
    check(getattr(cuda, name)(*arguments), name)


def start(device=0):
    """Make the GPU's primary context current."""
    call("cuInit", 0)
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    return context


def memory():
    """Return free and total bytes, as the program sees them."""
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def allocate(size):
    """Return the status and the address of new GPU memory."""
    pointer = c_uint64()
    return cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)), pointer.value


def uuid(device=0):
    """Return the GPU's UUID as 32 digits."""
    raw = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", raw, device)
    return bytes(raw).hex()


def mapped():
    """Return device, inode and name of every libcuda that this process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "libcuda.so" in line}
    found = []
    for path in sorted(paths):
        status = os.stat(path)
        found.append([status.st_dev, status.st_ino, os.path.basename(path)])
    return found


def loaded():
    """Return device and inode of the file in which a program finds the driver's functions."""
    address = ctypes.cast(cuda.cuInit, c_void_p).value
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                status = os.stat(line.split(None, 5)[5].strip())
                return [status.st_dev, status.st_ino]
    return []


def answer(**values):
    """Print the result as the last line."""
    print(json.dumps(values), flush=True)


__all__ = [
    "MIB", "NOT_SUPPORTED", "allocate", "answer", "byref", "c_int", "c_size_t", "c_uint64", "c_void_p", "call",
    "check", "cuda", "loaded", "mapped", "memory", "start", "uuid",
]  # fmt: skip
