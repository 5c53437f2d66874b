"""Hold memory of a GPU; for each line on stdin, copy from the device and print the status as JSON."""

import ctypes
import json
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def say(**values: int) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    total, free = ctypes.c_size_t(), ctypes.c_size_t()
    status = cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    status = status or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20))
    say(status=status, total=total.value, free=free.value)
    word = ctypes.c_uint32()
    for _ in sys.stdin:
        say(status=cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer, ctypes.c_size_t(4)))


main()
