"""A program with known driver calls, by symbols and by cuGetProcAddress, in threads and a child; ends with 7."""

import ctypes
import os
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
context = c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0


def look_up(name: str, release: int) -> ctypes._CFuncPtr:
    found, result = c_void_p(), c_int()
    status = cuda.cuGetProcAddress_v2(name.encode(), byref(found), release, c_uint64(0), byref(result))
    assert status == 0
    assert found
    return ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(found.value)


def other() -> None:
    assert cuda.cuCtxSetCurrent(context) == 0
    pointer = c_uint64()
    for _ in range(500):
        assert cuda.cuMemAlloc_v2(byref(pointer), c_size_t(4096)) == 0
        for size in (64, 64, 128):
            assert cuda.cuMemsetD8_v2(pointer, 1, c_size_t(size)) == 0
        assert cuda.cuMemFree_v2(pointer) == 0


thread = threading.Thread(target=other)
thread.start()
thread.join()
assert cuda.cuCtxSetCurrent(context) == 0
secret = c_uint64()
assert look_up("cuMemAlloc", 12000)(byref(secret), c_size_t(1 << 40)) == 2
assert cuda.cuMemAllocManaged(byref(secret), c_size_t(8192), c_uint(1)) == 0
child = os.fork()
if not child:
    cuda.cuInit(0)
    os._exit(0)
os.waitpid(child, 0)
raise SystemExit(7)
