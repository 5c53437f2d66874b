"""Load a module of more than 64 KiB, which differs by `sys.argv[1]`, and print the value of its variable."""

import ctypes
import json
import sys

PTX = b"""
.version 7.0
.target sm_60
.address_size 64
.visible .global .align 4 .u32 answer = 42;
.visible .entry nothing() { ret; }
"""


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    size, value = ctypes.c_size_t(), ctypes.c_uint32()
    text = PTX + b"// " + sys.argv[1].encode() * (100_000 // len(sys.argv[1])) + b"\n"
    status = cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    status = status or cuda.cuModuleLoadData(ctypes.byref(module), text)
    status = status or cuda.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), module, b"answer")
    status = status or cuda.cuMemcpyDtoH_v2(ctypes.byref(value), address, ctypes.c_size_t(4))
    print(json.dumps({"status": status, "answer": value.value}))


main()
