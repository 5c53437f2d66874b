"""Every allocation route of the software GPU; prints {route: [bytes taken, bytes left after freeing, refused]}."""

import ctypes
import json

from cuda import MIB, byref, c_size_t, c_uint, c_uint64, c_void_p, check, cuda, memory, start

stream, pool = c_void_p(), c_void_p()


class PoolProps(ctypes.Structure):
    """CUmemPoolProps: a pool on device 0."""

    _fields_ = (
        ("alloc_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("rest", ctypes.c_byte * 112),
    )


class ArrayShape(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_uint),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class FlatShape(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint))


FLOAT = 0x20


def array(pointer, size):
    return cuda.cuArrayCreate_v2(byref(pointer), byref(FlatShape(256, size // 4096, FLOAT, 4)))


def array_of_three(pointer, size):
    return cuda.cuArray3DCreate_v2(byref(pointer), byref(ArrayShape(256, size // 4096 // 16, 16, FLOAT, 4, 0)))


def new_pool() -> c_void_p:
    pool = c_void_p()
    check(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(1, 0, 1, 0))))
    return pool


def plain(pointer, size):
    return cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))


def pitched(pointer, size):
    pitch = c_size_t()
    return cuda.cuMemAllocPitch_v2(byref(pointer), byref(pitch), c_size_t(1024), c_size_t(size // 1024), c_uint(4))


def managed(pointer, size):
    return cuda.cuMemAllocManaged(byref(pointer), c_size_t(size), c_uint(1))


def ordered(pointer, size):
    return cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), stream)


def ordered_per_thread(pointer, size):
    return cuda.cuMemAllocAsync_ptsz(byref(pointer), c_size_t(size), stream)


def from_pool(pointer, size):
    return cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(size), pool, stream)


def free_now(pointer):
    check(cuda.cuMemFree_v2(pointer))


def free_array(pointer):
    check(cuda.cuArrayDestroy(pointer))


def free_ordered(pointer):
    check(cuda.cuMemFreeAsync(pointer, stream))
    check(cuda.cuStreamSynchronize(stream))


ROUTES = {
    "plain": (plain, free_now),
    "pitched": (pitched, free_now),
    "managed": (managed, free_now),
    "ordered": (ordered, free_ordered),
    "ordered, freed at once": (ordered, free_now),
    "ordered, per-thread streams": (ordered_per_thread, free_ordered),
    "from a pool": (from_pool, free_ordered),
    "from a pool, freed at once": (from_pool, free_now),
    "array": (array, free_array),
    "array of three dimensions": (array_of_three, free_array),
}


def main() -> None:
    start()
    check(cuda.cuStreamCreate(byref(stream), 0))
    pool.value = new_pool().value
    results = {}
    for name, (take, give) in ROUTES.items():
        pointer, other = c_uint64(), c_uint64()
        before = memory()[0]
        check(take(pointer, 100 * MIB))
        after = memory()[0]
        refused = take(other, 200 * MIB)
        give(pointer)
        results[name] = [before - after, before - memory()[0], refused]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
