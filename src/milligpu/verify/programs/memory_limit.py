"""Allocate until the driver refuses, on each route; then hold all that can be had until stdin is closed."""

import ctypes
import sys

from driver import MIB, allocate, answer, byref, c_int, c_size_t, c_uint64, c_void_p, call, cuda, memory, start

STEP = 64 * MIB
OUT_OF_MEMORY = 2
ATTACH_GLOBAL = 1


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp: memory of one GPU that is not exported."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def linear():
    status, pointer = allocate(STEP)
    return status, lambda: call("cuMemFree_v2", c_uint64(pointer))


def managed():
    pointer = c_uint64()
    status = cuda.cuMemAllocManaged(byref(pointer), c_size_t(STEP), ATTACH_GLOBAL)
    return status, lambda: call("cuMemFree_v2", pointer)


def ordered():
    """From a memory pool, as cudaMallocAsync does."""
    pointer = c_uint64()
    status = cuda.cuMemAllocAsync(byref(pointer), c_size_t(STEP), c_void_p())

    def free():
        call("cuMemFreeAsync", pointer, c_void_p())
        call("cuCtxSynchronize")

    return status, free


def virtual():
    """As PyTorch's expandable segments do."""
    handle = c_uint64()
    wanted = Properties(type=1, location=Location(1, 0))
    status = cuda.cuMemCreate(byref(handle), c_size_t(STEP), byref(wanted), c_uint64(0))
    return status, lambda: call("cuMemRelease", handle)


def fill(route, most):
    """Allocate on a route until it is refused; return bytes, the last status, and how to free them."""
    held, status = [], 0
    while status == 0 and len(held) * STEP <= most:
        status, free = route()
        if status == 0:
            held.append(free)
    return len(held) * STEP, status, held


start()
total = memory()[1]
routes = {}
for route in (linear, managed, ordered, virtual):
    size, status, held = fill(route, 2 * total)
    routes[route.__name__] = {"bytes": size, "status": status}
    for free in held:
        free()
fill(linear, 2 * total)
answer(total=total, routes=routes)
sys.stdin.read()
