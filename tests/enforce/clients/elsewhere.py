"""Allocations that only real drivers have, on a stand-in; prints {what: bytes in use after each step}."""

import ctypes
import json

from cuda import MIB, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, check, cuda, memory

HANDLE = ctypes.c_byte * 64


class Array(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class Box(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
        ("format", c_int), ("channels", c_uint), ("flags", c_uint),
    )  # fmt: skip


class Handle(ctypes.Structure):
    _fields_ = (("bytes", HANDLE),)


class External(ctypes.Structure):
    _fields_ = (("type", c_int), ("handle", c_uint64 * 2), ("size", c_uint64), ("rest", ctypes.c_byte * 128))


class Properties(ctypes.Structure):
    """CUmemAllocationProp on device 0."""

    _fields_ = (("type", c_int), ("handles", c_int), ("place", c_int), ("id", c_int), ("rest", ctypes.c_byte * 64))


FLOAT, LAYERED, SPARSE = 0x20, 1, 0x40
ON_CARD, ON_HOST = Properties(1, 0, 1, 0), Properties(1, 0, 2, 0)


def used() -> int:
    free, total = memory()
    return (total - free) // MIB


def arrays() -> list[int]:
    made, before = c_void_p(), used()
    check(cuda.cuArrayCreate_v2(byref(made), byref(Array(1024, 1024, FLOAT, 4))))
    steps = [used() - before]
    check(cuda.cuArrayDestroy(made))
    check(cuda.cuArray3DCreate_v2(byref(made), byref(Box(512, 512, 8, FLOAT, 1, 0))))
    steps += [used() - before]
    check(cuda.cuArrayDestroy(made))
    check(cuda.cuArray3DCreate_v2(byref(made), byref(Box(4096, 4096, 64, FLOAT, 4, SPARSE))))
    steps += [used() - before]
    status = cuda.cuArray3DCreate_v2(byref(made), byref(Box(4096, 4096, 64, FLOAT, 4, 0)))
    return [*steps, used() - before, status]


def mipmaps() -> list[int]:
    made, before = c_void_p(), used()
    check(cuda.cuMipmappedArrayCreate(byref(made), byref(Box(2048, 1024, 0, FLOAT, 1, 0)), 3))
    steps = [used() - before]
    check(cuda.cuMipmappedArrayDestroy(made))
    return [*steps, used() - before]


def virtual() -> list[int]:
    handle, before = c_uint64(), used()
    start = c_uint64(1 << 40)
    check(cuda.cuMemCreate(byref(handle), c_size_t(32 * MIB), byref(ON_CARD), c_uint64(0)))
    steps = [used() - before]
    check(cuda.cuMemMap(start, c_size_t(32 * MIB), c_size_t(0), handle, c_uint64(0)))
    check(cuda.cuMemRelease(handle))
    steps += [used() - before]
    check(cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(start.value)))
    check(cuda.cuMemUnmap(start, c_size_t(32 * MIB)))
    steps += [used() - before]
    check(cuda.cuMemRelease(handle))
    steps += [used() - before]
    check(cuda.cuMemCreate(byref(handle), c_size_t(32 * MIB), byref(ON_HOST), c_uint64(0)))
    steps += [used() - before]
    return [*steps, cuda.cuMemCreate(byref(handle), c_size_t(1 << 40), byref(ON_CARD), c_uint64(0))]


def imported() -> list[int]:
    handle, start, before = c_uint64(), c_uint64(1 << 41), used()
    check(cuda.cuMemImportFromShareableHandle(byref(handle), None, 1))
    steps = [used() - before]
    check(cuda.cuMemMap(start, c_size_t(16 * MIB), c_size_t(0), handle, c_uint64(0)))
    steps += [used() - before]
    check(cuda.cuMemUnmap(start, c_size_t(16 * MIB)))
    check(cuda.cuMemRelease(handle))
    return [*steps, used() - before]


def exported() -> list[int]:
    handle, shared, before = c_uint64(), c_int(), used()
    check(cuda.cuMemCreate(byref(handle), c_size_t(4 * MIB), byref(ON_CARD), c_uint64(0)))
    check(cuda.cuMemExportToShareableHandle(byref(shared), handle, 1, c_uint64(0)))
    check(cuda.cuMemRelease(handle))
    return [used() - before]


def other_processes() -> list[int]:
    pointer, before = c_uint64(), used()
    check(cuda.cuIpcOpenMemHandle_v2(byref(pointer), Handle(), c_uint(1)))
    steps = [used() - before]
    check(cuda.cuIpcCloseMemHandle(pointer))
    return [*steps, used() - before]


def graphics() -> list[int]:
    made, before = c_void_p(), used()
    check(cuda.cuImportExternalMemory(byref(made), byref(External(1, (c_uint64 * 2)(), 24 * MIB))))
    steps = [used() - before]
    check(cuda.cuDestroyExternalMemory(made))
    return [*steps, used() - before]


def main() -> None:
    context = c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    parts = [arrays, mipmaps, virtual, imported, exported, other_processes, graphics]
    print(json.dumps({part.__name__: part() for part in parts}))


if __name__ == "__main__":
    main()
