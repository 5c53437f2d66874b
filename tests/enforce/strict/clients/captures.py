"""Capture streams in the given mode while kernels run in others, and launch the graphs."""

import sys
import threading

from driver import byref, c_uint64, c_void_p, check, cuda, functions, launch, new_stream, start

mode = int(sys.argv[1])
context = start()
kernels = functions("us5", "us50", "us400")
stop = threading.Event()


def work() -> None:
    check(cuda.cuCtxSetCurrent(context))
    mine = new_stream()
    while not stop.is_set():
        for kernel in kernels:
            launch(kernel, mine)


def capture(stream: c_void_p) -> c_void_p:
    graph, exec_ = c_void_p(), c_void_p()
    check(cuda.cuStreamBeginCapture_v2(stream, mode))
    for _ in range(40):
        for kernel in kernels:
            launch(kernel, stream)
    check(cuda.cuStreamEndCapture(stream, byref(graph)))
    check(cuda.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(0)))
    check(cuda.cuGraphDestroy(graph))
    return exec_


other = threading.Thread(target=work)
other.start()
stream, before = new_stream(), new_stream()
for _ in range(20):
    for kernel in kernels * 10:
        launch(kernel, before)
    exec_ = capture(stream)
    check(cuda.cuGraphLaunch(exec_, stream))
    check(cuda.cuGraphExecDestroy(exec_))
    launch(kernels[0], stream)
stop.set()
other.join()
check(cuda.cuCtxSynchronize())
print("done")
