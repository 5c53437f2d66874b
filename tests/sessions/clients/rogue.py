"""A program that does not keep to its share: `around` opens the real driver, `spoil` clears its own account."""

import ctypes
import os
import sys
import time
from pathlib import Path


def main() -> None:
    tenant = Path(os.environ["LD_LIBRARY_PATH"].split(":")[0], "tenant")
    around = sys.argv[1] == "around"
    cuda = ctypes.CDLL(str(tenant / "real/libcuda.so.1") if around else "libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    # Through the real driver there is no cap of 1 GiB.
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30 if around else 512 << 20)) == 0
    if not around:
        with (tenant / "usage").open("r+b") as page:
            page.seek(64)
            page.write(bytes(4096 - 64))
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
