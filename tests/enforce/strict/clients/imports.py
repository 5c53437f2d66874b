"""Open memory of another process that is on GPU 1 while GPU 0 is current; print the account's MiB of each GPU."""

import ctypes
import json

from driver import byref, c_size_t, c_uint64, check, cuda, new_context, start

MIB = 1 << 20


class Handle(ctypes.Structure):
    """CUipcMemHandle; the strict driver reads the GPU and the MiB from it."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def used() -> int:
    free, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return (total.value - free.value) // MIB


first = start(0)
new_context(1)
before_1 = used()
check(cuda.cuCtxSetCurrent(first))
before_0 = used()
pointer, handle = c_uint64(), Handle()
handle.bytes[0], handle.bytes[1] = 1, 32
check(cuda.cuIpcOpenMemHandle_v2(byref(pointer), handle, 1))
on_0 = used() - before_0
check(cuda.cuCtxPopCurrent_v2(None))
check(cuda.cuCtxSetCurrent(new_context(1)))
print(json.dumps([on_0, used() - before_1]))
