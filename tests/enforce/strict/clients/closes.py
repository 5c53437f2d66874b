"""Close the driver's library while a thread of the limits library runs, fork, and end."""

import _ctypes
import os
import time

from driver import check, cuda, functions, launch, start, strict

start()
(kernel,) = functions("us200")
for _ in range(100):
    launch(kernel)
check(cuda.cuCtxSynchronize())
for _ in range(4):
    _ctypes.dlclose(cuda._handle)
_ctypes.dlclose(strict._handle)
deadline = time.monotonic() + 0.3  # the thread wakes up several times
while time.monotonic() < deadline:
    pass
if os.fork() == 0:
    os._exit(0)
os.wait()
print("done", flush=True)
