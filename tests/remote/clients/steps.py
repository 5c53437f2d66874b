"""Steps of a training as a GPU sees them, for bench/remote.py: `steps.py COUNT` prints figures as JSON.

A step is a graph of 33 kernels, which takes 1 ms of a GPU with modeled time. Then the program waits and reads a
number.
"""

import ctypes
import json
import statistics
import sys
import time

import numpy as np
from cuda.bindings import driver

NAP = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nap(.param .u32 ns)
{
.reg .b32 %r<2>;
ld.param.u32 %r1, [ns];
nanosleep.u32 %r1;
ret;
}
"""
KERNELS, STEP_NS = 33, 1_000_000
MIB = 1 << 20
COPY = 64 * MIB


def check(result: tuple) -> object:
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]


def timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    text = ctypes.create_string_buffer(NAP)
    nap = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(ctypes.addressof(text))), b"nap"))
    stream, memory = check(driver.cuStreamCreate(1)), check(driver.cuMemAlloc(COPY))
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(KERNELS):
        arguments = ((STEP_NS // KERNELS,), (ctypes.c_uint,))
        check(driver.cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))
    graph = check(driver.cuGraphInstantiate(check(driver.cuStreamEndCapture(stream)), 0))
    word, data = np.zeros(1, np.int32), np.ones(COPY, np.uint8)

    def step() -> None:
        check(driver.cuGraphLaunch(graph, stream))
        check(driver.cuCtxSynchronize())
        check(driver.cuMemcpyDtoH(word.ctypes.data, memory, 4))

    def copy_in() -> None:
        check(driver.cuMemcpyHtoD(memory, data.ctypes.data, COPY))
        check(driver.cuCtxSynchronize())

    for _ in range(5):
        step()
    steps = [timed(step) for _ in range(int(sys.argv[1]))]
    ins = [timed(copy_in) for _ in range(3)]
    outs = [timed(lambda: check(driver.cuMemcpyDtoH(data.ctypes.data, memory, COPY))) for _ in range(3)]
    figures = {"step_ms": 1000 * statistics.median(steps)}
    figures |= {"in_mib_per_s": 64 / min(ins), "out_mib_per_s": 64 / min(outs)}
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


main()
