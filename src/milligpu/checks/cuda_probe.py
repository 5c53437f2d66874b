"""What the CUDA driver says of its devices, as JSON: `python -m milligpu.checks.cuda_probe`.

A process of its own, because the driver stays loaded in the process that opened it. It makes no context.
"""

import ctypes
import json
import sys

_CAN_USE_HOST_POINTER = 91
_CAN_USE_STREAM_MEMORY_OPERATIONS = (122, 92)
"""The attribute of CUDA 12, and that of older drivers."""


def probe() -> dict[str, object]:
    """Ask each device; `error` says why there is no answer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error)}
    status, version, count = cuda.cuInit(0), ctypes.c_int(), ctypes.c_int()
    if status:
        return {"error": f"cuInit: CUDA error {status}"}
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = [
        {
            "stream_memory_operations": any(_ask(cuda, each, at) for each in _CAN_USE_STREAM_MEMORY_OPERATIONS),
            "host_pointer": _ask(cuda, _CAN_USE_HOST_POINTER, at),
        }
        for at in range(count.value)
    ]
    return {"version": version.value, "devices": devices}


def _ask(cuda: ctypes.CDLL, attribute: int, device: int) -> bool:
    value = ctypes.c_int()
    return cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0 and value.value == 1


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
