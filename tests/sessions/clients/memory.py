"""A CUDA program that does as it is told: one line in, one line of JSON out. It says what it sees of its GPUs."""

import ctypes
import json
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    state = {"init": cuda.cuInit(0), "total": [], "uuid": []}
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        size, uuid, context = ctypes.c_size_t(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        cuda.cuDeviceGetUuid_v2(uuid, device)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
        state["total"].append(size.value >> 20)
        state["uuid"].append(bytes(uuid).hex())
    print(json.dumps(state), flush=True)
    for line in sys.stdin:
        pointer = ctypes.c_void_p()
        print(json.dumps(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(line) << 20))), flush=True)


if __name__ == "__main__":
    main()
