"""Ask for functions as the CUDA runtime does; print what a program sees of the driver's version and functions."""

import ctypes
import json

from driver import byref, c_int, c_uint64, c_void_p, cuda, strict


def ask(library: ctypes.CDLL, name: str, release: int) -> int:
    found, result = c_void_p(), c_int(-1)
    library.cuGetProcAddress_v2(name.encode(), byref(found), release, c_uint64(0), byref(result))
    return found.value or 0


def symbol(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0


version = c_int()
cuda.cuDriverGetVersion(byref(version))
print(
    json.dumps(
        {
            "version": version.value,
            "cuMemAlloc": ask(cuda, "cuMemAlloc", version.value) == symbol(cuda, "cuMemAlloc_v2"),
            "cuStreamQuery": ask(cuda, "cuStreamQuery", version.value) == symbol(strict, "cuStreamQuery"),
            "cuCtxCreate": next(
                (
                    name
                    for name in ("cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4")
                    if ask(cuda, "cuCtxCreate", version.value) == symbol(cuda, name)
                ),
                "",
            ),
            "cuFutureAlloc": ask(cuda, "cuFutureAlloc", version.value),
        }
    )
)
