"""Make one forbidden call."""

import os
import sys

from driver import byref, c_size_t, c_uint64, c_void_p, check, cuda, functions, launch, new_stream, primary, start

what = sys.argv[1]
context = start()
stream = new_stream()
event = c_void_p()
check(cuda.cuEventCreate(byref(event), 0))
if what == "destroyed stream":
    check(cuda.cuStreamDestroy_v2(stream))
    launch(functions("us5")[0], stream)
elif what == "query in a capture":
    check(cuda.cuStreamBeginCapture_v2(stream, 1))
    cuda.cuEventQuery(event)
elif what == "no context":
    check(cuda.cuCtxSetCurrent(None))
    new_stream()
elif what == "freed memory of the host":
    pointer, host = c_uint64(), c_void_p()
    check(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(1 << 20)))
    check(cuda.cuMemHostAlloc(byref(host), c_size_t(1 << 20), 0))
    check(cuda.cuMemFreeHost(host))
    cuda.cuMemcpyHtoDAsync_v2(pointer, host, c_size_t(1 << 20), stream)
elif what == "unloaded library":
    library, kernel = c_void_p(), c_void_p()
    check(cuda.cuLibraryLoadData(byref(library), b"\0\0\0\0", None, None, 0, None, None, 0))
    check(cuda.cuLibraryGetKernel(byref(kernel), library, b"us5"))
    check(cuda.cuLibraryUnload(library))
    launch(kernel, stream)
elif what == "reset context":
    primary()
    made = new_stream()
    check(cuda.cuDevicePrimaryCtxReset_v2(0))
    check(cuda.cuCtxSetCurrent(context))
    launch(functions("us5")[0], made)
elif what == "after fork":
    if os.fork() == 0:
        new_stream()
    os.wait()
