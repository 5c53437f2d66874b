"""Make one forbidden call."""

import os
import sys

from driver import byref, c_void_p, check, cuda, functions, launch, new_stream, start

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
elif what == "after fork":
    if os.fork() == 0:
        new_stream()
    os.wait()
