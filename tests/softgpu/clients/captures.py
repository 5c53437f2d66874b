"""Stream capture and explicitly built graphs: what runs, how often, and what a capture refuses."""

import ctypes
import json

import numpy as np
from driver import check, driver, function, launch, load, ptx, start, upload

RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
ADD = 'extern "C" __global__ void add(int *x, int v) { atomicAdd(x, v); }'


def code(result: tuple) -> int:
    return int(result[0])


class Case:
    def __init__(self) -> None:
        self.context = start()
        self.add = function(load(ptx(ADD)), "add")
        self.memory = upload(np.zeros(4, np.int32))
        self.streams = [check(driver.cuStreamCreate(flags)) for flags in (0, 1, 1)]

    def value(self, at: int = 0) -> int:
        check(driver.cuCtxSynchronize())
        result = np.zeros(4, np.int32)
        check(driver.cuMemcpyDtoH(result.ctypes.data, self.memory, 16))
        return int(result[at])

    def run(self, graph, times: int) -> None:
        instance = check(driver.cuGraphInstantiate(graph, 0))
        for _ in range(times):
            check(driver.cuGraphLaunch(instance, self.streams[1]))
        check(driver.cuStreamSynchronize(self.streams[1]))
        check(driver.cuGraphExecDestroy(instance))


def main() -> None:
    results: dict[str, bool] = {}
    case = Case()
    first, second, third = case.streams

    check(driver.cuStreamBeginCapture(second, GLOBAL))
    launch(case.add, 1, 1, case.memory, 5, stream=second)
    check(driver.cuMemsetD32Async(int(case.memory) + 4, 7, 1, second))
    check(driver.cuMemcpyDtoDAsync(int(case.memory) + 8, int(case.memory) + 4, 4, second))
    results["a stream says that it captures"] = int(check(driver.cuStreamIsCapturing(second))) == 1
    graph = check(driver.cuStreamEndCapture(second))
    results["capturing runs nothing"] = case.value() == 0
    case.run(graph, 3)
    results["a captured graph runs as often as launched"] = (case.value(), case.value(2)) == (15, 7)
    count = check(driver.cuGraphGetNodes(graph))[1]
    nodes = check(driver.cuGraphGetNodes(graph, count))[0]
    kinds = [int(check(driver.cuGraphNodeGetType(node))) for node in nodes]
    results["its nodes have types"] = kinds == [0, 2, 1]

    event, back = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
    check(driver.cuStreamBeginCapture(second, RELAXED))
    check(driver.cuEventRecord(event, second))
    check(driver.cuStreamWaitEvent(third, event, 0))
    launch(case.add, 1, 1, case.memory, 100, stream=third)
    results["an event in a graph cannot be asked"] = code(driver.cuEventQuery(event)) == 907
    check(driver.cuEventRecord(back, third))
    check(driver.cuStreamWaitEvent(second, back, 0))
    case.run(check(driver.cuStreamEndCapture(second)), 2)
    results["a stream that waits for a captured event takes part"] = case.value() == 215

    check(driver.cuStreamBeginCapture(second, RELAXED))
    check(driver.cuEventRecord(event, second))
    check(driver.cuStreamWaitEvent(third, event, 0))
    results["a branch that nobody waits for"] = code(driver.cuStreamEndCapture(second)) == 904
    results["ending what was not begun"] = code(driver.cuStreamEndCapture(second)) == 401
    check(driver.cuStreamBeginCapture(second, RELAXED))
    results["beginning twice"] = code(driver.cuStreamBeginCapture(second, RELAXED)) == 401
    results["waiting while capturing"] = code(driver.cuStreamSynchronize(second)) == 900
    results["spoils the capture"] = code(driver.cuStreamEndCapture(second)) == 901
    results["the default stream cannot capture"] = code(driver.cuStreamBeginCapture(0, RELAXED)) == 900
    check(driver.cuStreamBeginCapture(first, GLOBAL))
    results["nor run beside one that it would wait for"] = code(driver.cuMemsetD8Async(case.memory, 0, 1, 0)) == 906
    check(driver.cuStreamEndCapture(first))

    called = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
    host = driver.CUDA_HOST_NODE_PARAMS()
    host.fn = driver.CUhostFn(_ptr=ctypes.addressof(ctypes.cast(callback, ctypes.c_void_p)))
    child = check(driver.cuGraphCreate(0))
    check(driver.cuGraphAddHostNode(child, [], 0, host))
    outer = check(driver.cuGraphCreate(0))
    check(driver.cuGraphAddChildGraphNode(outer, [], 0, child))
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = int(case.memory), 9, 4, 1, 1
    check(driver.cuGraphAddMemsetNode(outer, [], 0, fill, case.context))
    case.run(outer, 2)
    results["graphs in graphs, host functions and fills"] = (len(called), case.value()) == (2, 9)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
