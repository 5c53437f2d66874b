"""Open NVIDIA's CUDA runtime library and call it; print what it answers, which ends early without a real driver."""

import ctypes
import json
import sys

runtime = ctypes.CDLL(sys.argv[1])
version, count, pointer = ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_void_p()
statuses = {
    "cudaDriverGetVersion": runtime.cudaDriverGetVersion(ctypes.byref(version)),
    "cudaGetDeviceCount": runtime.cudaGetDeviceCount(ctypes.byref(count)),
    "cudaMalloc": runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
    "cudaFree": runtime.cudaFree(None),
}
print(json.dumps({"version": version.value, "count": count.value, **statuses}))
