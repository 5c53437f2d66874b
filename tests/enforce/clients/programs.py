"""What known programs ask of the driver, as their public sources say; prints the memory in use after each step.

programs.py NAME
"""

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cuda import MIB, OUT_OF_MEMORY, check, cuda, memory, start

DEVICE, HOST, PINNED, FILE, READ_WRITE = 1, 2, 1, 1, 3
SEGMENT = 20 * MIB
PTX = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n\0"


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", ctypes.c_byte * 8),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


def used() -> int:
    free, total = memory()
    return total - free


def create(where: int, size: int) -> tuple[int, c_uint64]:
    handle, prop = c_uint64(), AllocationProp(PINNED, FILE, Location(where, 0))
    return cuda.cuMemCreate(byref(handle), c_size_t(size), byref(prop), c_uint64(0)), handle


def reserve(size: int, alignment: int = 0) -> int:
    address = c_uint64()
    check(cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(alignment), c_uint64(0), c_uint64(0)))
    return address.value


def map_for_device(address: int, size: int, handle: c_uint64) -> None:
    check(cuda.cuMemMap(c_uint64(address), c_size_t(size), c_size_t(0), handle, c_uint64(0)))
    access = AccessDesc(Location(DEVICE, 0), READ_WRITE)
    check(cuda.cuMemSetAccess(c_uint64(address), c_size_t(size), byref(access), c_size_t(1)))


def pytorch_expandable_segments() -> dict[str, int]:
    """github.com/pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp, struct ExpandableSegment.

    Addresses for 9/8 of the GPU, then segments of 20 MiB until there is no memory, then all of it back.
    """
    start()
    before, total = used(), memory()[1]
    size = -(-(total + total // 8) // SEGMENT) * SEGMENT
    base = reserve(size)
    steps = {"reserved": used() - before}
    handles: list[c_uint64] = []
    while True:
        status, handle = create(DEVICE, SEGMENT)
        if status:
            break
        map_for_device(base + len(handles) * SEGMENT, SEGMENT, handle)
        handles.append(handle)
    steps |= {"refused": status, "segments": len(handles), "mapped": used() - before}
    for at, handle in enumerate(handles):
        check(cuda.cuMemUnmap(c_uint64(base + at * SEGMENT), c_size_t(SEGMENT)))
        check(cuda.cuMemRelease(handle))
    check(cuda.cuMemAddressFree(c_uint64(base), c_size_t(size)))
    return {**steps, "left": used() - before}


def nccl_peer_buffers() -> dict[str, int]:
    """The same for a buffer that another process opens: its file descriptor is sent there and closed here."""
    return nccl_buffers(export=True)


def nccl_buffers(*, export: bool = False) -> dict[str, int]:
    """github.com/NVIDIA/nccl, src/include/alloc.h: ncclCuMemHostAlloc, ncclCuMemAlloc, ncclCuMemFree.

    Host memory comes from a thread without a current context; NCCL names a NUMA node, which the software GPU does
    not know. The handle is retained, released, unmapped and released again.
    """
    context = start()
    before = used()
    check(cuda.cuCtxSetCurrent(None))
    status, host = create(HOST, 4 * MIB)
    check(status)
    check(cuda.cuCtxSetCurrent(context))
    steps = {"host": used() - before}
    granularity, prop = c_size_t(), AllocationProp(PINNED, FILE, Location(DEVICE, 0))
    check(cuda.cuMemGetAllocationGranularity(byref(granularity), byref(prop), 0))
    size = -(-(9 * MIB + 1) // granularity.value) * granularity.value
    status, handle = create(DEVICE, size)
    check(status)
    address = reserve(size, granularity.value)
    map_for_device(address, size, handle)
    steps["buffer"] = used() - before
    if export:
        file = c_int(-1)
        check(cuda.cuMemExportToShareableHandle(byref(file), handle, FILE, c_uint64(0)))
        os.close(file.value)
    again, found = c_uint64(), c_size_t()
    check(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address)))
    check(cuda.cuMemRelease(again))
    check(cuda.cuMemGetAddressRange_v2(None, byref(found), c_uint64(address)))
    check(cuda.cuMemUnmap(c_uint64(address), found))
    steps["released once"] = used() - before
    check(cuda.cuMemRelease(again))
    check(cuda.cuMemAddressFree(c_uint64(address), found))
    check(cuda.cuMemRelease(host))
    return {**steps, "size": size, "left": used() - before}


def jax_preallocation() -> dict[str, int]:
    """docs.jax.dev, "GPU memory allocation": 75 % of the GPU's memory with the first operation, in one piece."""
    start()
    before, total = used(), memory()[1]
    pointer, more = c_uint64(), c_uint64()
    check(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(total * 3 // 4)))
    steps = {"part": total * 3 // 4, "preallocated": used() - before}
    steps["refused"] = cuda.cuMemAlloc_v2(byref(more), c_size_t(total // 2))
    check(cuda.cuMemFree_v2(pointer))
    return {**steps, "left": used() - before}


def pytorch_graphs() -> dict[str, int]:
    """github.com/pytorch/pytorch, aten/src/ATen/cuda/CUDAGraph.cpp, as vLLM uses it: a graph per batch size.

    Each is captured in global mode after a warm-up on the same stream, instantiated, and launched many times.
    """
    start()
    stream, module, kernel = c_void_p(), c_void_p(), c_void_p()
    check(cuda.cuModuleLoadData(byref(module), PTX))
    check(cuda.cuModuleGetFunction(byref(kernel), module, b"k"))
    check(cuda.cuStreamCreate(byref(stream), 1))

    def launch() -> None:
        check(cuda.cuLaunchKernel(kernel, *(c_uint(1),) * 6, 0, stream, None, None))

    executables: list[c_void_p] = []
    before = used()
    for size in range(67, 0, -1):
        graph, executable = c_void_p(), c_void_p()
        launch()
        check(cuda.cuStreamBeginCapture_v2(stream, 0))
        for _ in range(1 + size % 8):
            launch()
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        check(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(1)))
        check(cuda.cuGraphDestroy(graph))
        executables.append(executable)
    for executable in executables * 3:
        check(cuda.cuGraphLaunch(executable, stream))
    check(cuda.cuStreamSynchronize(stream))
    for executable in executables:
        check(cuda.cuGraphExecDestroy(executable))
    return {"graphs": len(executables), "left": used() - before}


if __name__ == "__main__":
    assert OUT_OF_MEMORY == 2
    print(json.dumps(globals()[sys.argv[1]]()))
