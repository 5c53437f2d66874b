"""Release memory in every way; prints {way: bytes that are still in use}."""

import json

from cuda import MIB, allocate, byref, c_size_t, c_uint64, c_void_p, check, cuda, memory, start
from routes import new_pool

PTX = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 big[67108864];\n"


def in_use() -> int:
    free, total = memory()
    return total - free


def main() -> None:
    primary = start()
    results = {}
    before = in_use()

    context = c_void_p()
    check(cuda.cuCtxCreate_v2(byref(context), 0, 0))
    allocate(20 * MIB)
    allocate(MIB)
    grown = in_use() - before
    check(cuda.cuCtxDestroy_v2(context))
    check(cuda.cuCtxSetCurrent(primary))
    results["a context with two allocations"] = [grown, in_use() - before]

    module = c_void_p()
    check(cuda.cuModuleLoadData(byref(module), PTX))
    grown = in_use() - before
    check(cuda.cuModuleUnload(module))
    results["a module with a variable"] = [grown, in_use() - before]

    library = c_void_p()
    check(cuda.cuLibraryLoadData(byref(library), PTX, None, None, 0, None, None, 0))
    grown = in_use() - before
    check(cuda.cuLibraryUnload(library))
    results["a library with a variable"] = [grown, in_use() - before]

    pool, pointer, stream = new_pool(), c_uint64(), c_void_p()
    check(cuda.cuMemAllocFromPoolAsync(byref(pointer), c_size_t(30 * MIB), pool, stream))
    grown = in_use() - before
    check(cuda.cuMemFreeAsync(pointer, stream))
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
    check(cuda.cuMemPoolDestroy(pool))
    results["a pool"] = [grown, in_use() - before]

    check(cuda.cuCtxSetLimit(2, c_size_t(40 * MIB)))
    grown = in_use() - before
    check(cuda.cuCtxSetLimit(2, c_size_t(8 * MIB)))
    results["a heap for kernels"] = [grown, in_use() - before]

    allocate(10 * MIB)
    check(cuda.cuDevicePrimaryCtxReset_v2(0))
    check(cuda.cuDevicePrimaryCtxRetain(byref(primary), 0))
    check(cuda.cuCtxSetCurrent(primary))
    results["the primary context, reset"] = [10 * MIB, in_use() - before]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
