"""Allocate 64 MiB in a capture; print the MiB in use when it is captured, instantiated and destroyed."""

import json

from driver import byref, c_size_t, c_uint64, c_void_p, check, cuda, new_stream, start

MIB, TOO_MUCH = 1 << 20, 20


def used() -> int:
    free, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return (total.value - free.value) // MIB


def capture() -> c_void_p:
    pointer, graph = c_uint64(), c_void_p()
    check(cuda.cuStreamBeginCapture_v2(stream, 0))
    check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(64 * MIB), stream))
    check(cuda.cuMemFreeAsync(pointer, stream))
    check(cuda.cuStreamEndCapture(stream, byref(graph)))
    return graph


start()
stream, before = new_stream(), used()
graph, made = capture(), c_void_p()
steps = [used() - before]
check(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
steps.append(used() - before)
more: list[c_void_p] = []
status = 0
while not status and len(more) < TOO_MUCH:
    more.append(c_void_p())
    status = cuda.cuGraphInstantiateWithFlags(byref(more[-1]), graph, c_uint64(0))
for each in (made, *more[:-1]):
    check(cuda.cuGraphExecDestroy(each))
print(json.dumps([*steps, len(more), status, used() - before]))
