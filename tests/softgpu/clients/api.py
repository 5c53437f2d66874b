"""Check the driver API against its documentation, area by area. Prints {case: true or false} as JSON."""

import ctypes
import json
import os

import numpy as np
from cuda.bindings import driver as cu
from driver import check, function, launch, load, ptx, start, upload
from driver import download as download_like

SOURCE = """
extern "C" __global__ void add(int *p, int v) { p[threadIdx.x] += v; }
extern "C" __global__ void twice(int *p) { p[threadIdx.x] *= 2; }
extern "C" __global__ void __launch_bounds__(128) shared(int *p) {
  __shared__ int s[1024]; s[threadIdx.x] = p[threadIdx.x]; __syncthreads(); p[threadIdx.x] = s[threadIdx.x ^ 1]; }
__device__ int table[16];
"""
N = 64
found: dict[str, bool] = {}


def download(pointer, shape: tuple[int, ...], kind: type) -> np.ndarray:
    return download_like(pointer, np.empty(shape, kind))


def code(result) -> str:
    return result[0].name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


def says(case: str, result, want: str) -> None:
    found[case] = code(result) == want
    if not found[case]:
        print(case, code(result), "instead of", want)


def holds(case: str, truth) -> None:
    found[case] = bool(truth)


class Case:
    def __init__(self) -> None:
        self.context = start()
        self.module = load(ptx(SOURCE))
        self.add, self.twice, self.shared = (function(self.module, name) for name in ("add", "twice", "shared"))
        self.data = upload(np.zeros(N, np.int32))

    def value(self) -> int:
        check(cu.cuCtxSynchronize())
        values = download(self.data, (N,), np.int32)
        return int(values[0]) if (values == values[0]).all() else -1

    def kernel(self, which, *values):
        """Parameters of a kernel node, which must stay alive while the node is created."""
        parameters = cu.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = which
        parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = N, 1, 1
        kinds = tuple(ctypes.c_int if isinstance(value, int) else None for value in values)
        parameters.kernelParams = (values, kinds)
        return parameters


def memory(case: Case) -> None:
    pitch = 512
    base = check(cu.cuMemAlloc(pitch * 8))
    at = int(base)
    check(cu.cuMemsetD8(base, 0, pitch * 8))
    check(cu.cuMemsetD2D8(base, pitch, 7, 10, 3))
    check(cu.cuMemsetD2D16(at + 3 * pitch, pitch, 0x1234, 5, 2))
    check(cu.cuMemsetD2D32(at + 5 * pitch, pitch, 0xDEADBEEF, 4, 3))
    rows = download(base, (8, pitch), np.uint8)
    holds("rows of bytes", (rows[:3, :10] == 7).all() and not rows[:3, 10:].any())
    holds("rows of halves", (rows[3:5, :10].view(np.uint16) == 0x1234).all() and not rows[3:5, 10:].any())
    words = np.ascontiguousarray(rows[5:8, :16]).view(np.uint32)
    holds("rows of words", (words == 0xDEADBEEF).all() and not rows[5:, 16:].any())
    says("rows past the end", cu.cuMemsetD2D8(base, pitch, 1, 10, 9), "INVALID_VALUE")
    says("rows wider than their pitch", cu.cuMemsetD2D8(base, 8, 1, 10, 2), "INVALID_VALUE")
    says("rows that are too many to count", cu.cuMemsetD2D32(base, 1 << 40, 1, 1, 1 << 40), "INVALID_VALUE")
    says("no rows", cu.cuMemsetD2D8(base, pitch, 1, 10, 0), "SUCCESS")
    says("a half at an odd address", cu.cuMemsetD16(at + 1, 1, 2), "INVALID_VALUE")
    host = check(cu.cuMemHostAlloc(4096, cu.CU_MEMHOSTALLOC_PORTABLE))
    holds("flags of host memory", check(cu.cuMemHostGetFlags(host)) == cu.CU_MEMHOSTALLOC_PORTABLE)
    says("flags of device memory", cu.cuMemHostGetFlags(at), "INVALID_VALUE")
    says("device memory freed as host memory", cu.cuMemFreeHost(at), "INVALID_VALUE")
    says("host memory freed as device memory", cu.cuMemFree(host), "INVALID_VALUE")
    check(cu.cuMemFreeHost(host))
    says("host memory freed twice", cu.cuMemFreeHost(host), "INVALID_VALUE")
    own = np.zeros(8192, np.uint8)
    where = own.ctypes.data
    check(cu.cuMemHostRegister(where, 4096, 0))
    says("registered again", cu.cuMemHostRegister(where + 100, 10, 0), "HOST_MEMORY_ALREADY_REGISTERED")
    says("registered in part", cu.cuMemHostRegister(where - 10, 4096, 0), "HOST_MEMORY_ALREADY_REGISTERED")
    holds("mapped where it is", int(check(cu.cuMemHostGetDevicePointer(where, 0))) == where)
    check(cu.cuMemHostUnregister(where))
    says("unregistered twice", cu.cuMemHostUnregister(where), "HOST_MEMORY_NOT_REGISTERED")
    stream = check(cu.cuStreamCreate(0))
    later = check(cu.cuMemAllocAsync(4096, stream))
    check(cu.cuMemFreeAsync(later, stream))
    says("freed twice in a stream", cu.cuMemFreeAsync(later, stream), "INVALID_VALUE")
    check(cu.cuStreamDestroy(stream))
    says("a size of 2^63", cu.cuMemAlloc(1 << 63), "OUT_OF_MEMORY")
    says("a pitch of 2^63", cu.cuMemAllocPitch(1 << 63, 2, 4), "OUT_OF_MEMORY")
    says("managed memory of no kind", cu.cuMemAllocManaged(4096, 0), "INVALID_VALUE")
    says("a copy of 2^63", cu.cuMemcpyDtoD(base, at + 8, 1 << 63), "INVALID_VALUE")
    check(cu.cuMemFree(base))


def boxes(case: Case) -> None:
    source = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
    device = upload(np.zeros(4 * 6 * 8, np.uint8))
    box = cu.CUDA_MEMCPY3D()
    box.srcMemoryType, box.srcHost = cu.CUmemorytype.CU_MEMORYTYPE_HOST, source.ctypes.data
    box.dstMemoryType, box.dstDevice = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE, device
    box.srcPitch = box.dstPitch = 8
    box.srcHeight = box.dstHeight = 6
    box.srcXInBytes, box.srcY, box.srcZ = 2, 1, 1
    box.WidthInBytes, box.Height, box.Depth = 3, 2, 2
    check(cu.cuMemcpy3D(box))
    want = np.zeros((4, 6, 8), np.uint8)
    want[0:2, 0:2, 0:3] = source[1:3, 1:3, 2:5]
    holds("a box out of a box", (download(device, (4, 6, 8), np.uint8) == want).all())
    box.Depth = 1 << 60
    says("a box without end", cu.cuMemcpy3D(box), "INVALID_VALUE")
    flat = cu.CUDA_MEMCPY2D()
    flat.srcMemoryType = flat.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    flat.srcDevice, flat.dstDevice, flat.srcPitch, flat.dstPitch = device, device, 8, 8
    flat.dstY, flat.WidthInBytes, flat.Height = 24, 8, 24
    says("a rectangle past the end", cu.cuMemcpy2D(flat), "INVALID_VALUE")
    flat.Height = 0
    says("an empty rectangle", cu.cuMemcpy2D(flat), "SUCCESS")


def pointers(case: Case) -> None:
    kinds = cu.CUpointer_attribute
    ordinal, managed = kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED
    unknown = np.zeros(16, np.uint8).ctypes.data
    several = [kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ordinal, managed]
    holds("several attributes", list(check(cu.cuPointerGetAttributes(3, several, case.data))) == [2, 0, 0])
    holds(
        "several of an unknown address", list(check(cu.cuPointerGetAttributes(3, several, unknown))) == [0, -2, 0]
    )
    says("one of an unknown address", cu.cuPointerGetAttribute(ordinal, unknown), "INVALID_VALUE")
    inside = int(case.data) + 8
    base, size = check(cu.cuMemGetAddressRange(inside))
    holds("the range of an address", (int(base), size) == (int(case.data), 4 * N))
    says("the range of no address", cu.cuMemGetAddressRange(unknown), "NOT_FOUND")
    pool = check(cu.cuDeviceGetDefaultMemPool(0))
    taken = check(cu.cuMemAllocAsync(64, 0))
    handle = check(cu.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, taken))
    holds("the pool of an address", int(handle) == int(pool))
    check(cu.cuMemFreeAsync(taken, 0))
    address, size = check(cu.cuModuleGetGlobal(case.module, b"table"))
    holds("a module's variable", size == 64)
    check(cu.cuMemsetD32(address, 9, 16))
    holds("is memory like any other", (download(address, (16,), np.int32) == 9).all())


def functions(case: Case) -> None:
    kinds = cu.CUfunction_attribute
    holds(
        "launch bounds",
        check(cu.cuFuncGetAttribute(kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, case.shared)) == 128,
    )
    holds(
        "static shared memory",
        check(cu.cuFuncGetAttribute(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, case.shared)) == 4096,
    )
    blocks = check(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(case.add, 256, 0))
    per = check(
        cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0)
    )
    holds("occupancy", blocks == per // 256)
    count = check(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    grid, block = check(cu.cuOccupancyMaxPotentialBlockSize(case.add, None, 0, 0))
    holds("the best block", block * (grid // count) == per)
    grid, block = check(cu.cuOccupancyMaxPotentialBlockSize(case.add, None, 0, 200))
    holds("the best block within a limit", 0 < block <= 200 and grid > 0)
    holds(
        "shared memory that is left", check(cu.cuOccupancyAvailableDynamicSMemPerBlock(case.shared, 1, 128)) > 40000
    )
    says(
        "of blocks that do not fit",
        cu.cuOccupancyAvailableDynamicSMemPerBlock(case.shared, 100, 128),
        "INVALID_VALUE",
    )
    holds("all functions", len(check(cu.cuModuleEnumerateFunctions(3, case.module))) == 3)
    holds("a function is loaded", int(check(cu.cuFuncIsLoaded(case.add))) == 1)
    says(
        "a block beyond its bounds",
        cu.cuLaunchKernel(case.shared, 1, 1, 1, 256, 1, 1, 0, 0, ((case.data,), (None,)), 0),
        "INVALID_VALUE",
    )
    says("a launch without parameters", cu.cuLaunchKernel(case.add, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "INVALID_VALUE")


def contexts(case: Case) -> None:
    second = check(cu.cuCtxCreate(None, 0, 0))
    holds("a new context is current", int(check(cu.cuCtxGetCurrent())) == int(second))
    says(
        "a function of another context",
        cu.cuLaunchKernel(case.twice, 1, 1, 1, 1, 1, 1, 0, 0, ((case.data,), (None,)), 0),
        "INVALID_HANDLE",
    )
    event, stream = check(cu.cuEventCreate(0)), check(cu.cuStreamCreate(0))
    check(cu.cuCtxPushCurrent(case.context))
    says("an event on another context's stream", cu.cuEventRecord(event, 0), "INVALID_HANDLE")
    holds("a stream knows its context", int(check(cu.cuStreamGetCtx(stream))) == int(second))
    holds("popped", int(check(cu.cuCtxPopCurrent())) == int(case.context))
    check(cu.cuCtxSetFlags(cu.CUctx_flags.CU_CTX_SCHED_YIELD))
    holds("flags", check(cu.cuCtxGetFlags()) == int(cu.CUctx_flags.CU_CTX_SCHED_YIELD))
    says("unknown flags", cu.cuCtxSetFlags(1 << 30), "INVALID_VALUE")
    check(cu.cuCtxDestroy(second))
    says("a stream of a destroyed context", cu.cuStreamSynchronize(stream), "INVALID_HANDLE")
    says("a context destroyed twice", cu.cuCtxDestroy(second), "INVALID_CONTEXT")
    says("a destroyed context made current", cu.cuCtxSetCurrent(second), "INVALID_CONTEXT")
    check(cu.cuCtxSetCurrent(case.context))
    says("the primary context destroyed", cu.cuCtxDestroy(case.context), "INVALID_CONTEXT")
    for _ in range(3):
        check(cu.cuDevicePrimaryCtxRetain(1))
    for _ in range(3):
        check(cu.cuDevicePrimaryCtxRelease(1))
    says("released once too often", cu.cuDevicePrimaryCtxRelease(1), "INVALID_CONTEXT")
    holds("and not active", not check(cu.cuDevicePrimaryCtxGetState(1))[1])
    check(cu.cuDevicePrimaryCtxReset(1))


def streams(case: Case) -> None:
    least, greatest = check(cu.cuCtxGetStreamPriorityRange())
    stream = check(cu.cuStreamCreateWithPriority(1, greatest - 5))
    holds("priorities are kept in range", check(cu.cuStreamGetPriority(stream)) == greatest and least == 0)
    holds("flags of a stream", check(cu.cuStreamGetFlags(stream)) == 1)
    says("unknown flags of a stream", cu.cuStreamCreate(8), "INVALID_VALUE")
    says("unknown flags of a wait", cu.cuStreamWaitEvent(stream, check(cu.cuEventCreate(0)), 8), "INVALID_VALUE")
    timed, untimed = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(2))
    says("the time of an event that never was", cu.cuEventElapsedTime(timed, timed), "INVALID_HANDLE")
    check(cu.cuEventRecord(timed, stream))
    check(cu.cuEventRecord(untimed, stream))
    check(cu.cuStreamSynchronize(stream))
    says("the time of an event without one", cu.cuEventElapsedTime(timed, untimed), "INVALID_HANDLE")
    holds("no time from an event to itself", check(cu.cuEventElapsedTime(timed, timed)) == 0)
    check(cu.cuEventDestroy(timed))
    says("an event destroyed twice", cu.cuEventDestroy(timed), "INVALID_HANDLE")
    check(cu.cuStreamDestroy(stream))
    says("a stream destroyed twice", cu.cuStreamDestroy(stream), "INVALID_HANDLE")
    says("the default stream destroyed", cu.cuStreamDestroy(0), "INVALID_HANDLE")


def graphs(case: Case) -> None:
    graph = check(cu.cuGraphCreate(0))
    parameters = case.kernel(case.twice, case.data)
    last = check(cu.cuGraphAddKernelNode(graph, None, 0, parameters))
    parameters = case.kernel(case.add, case.data, 5)
    first = check(cu.cuGraphAddKernelNode(graph, None, 0, parameters))
    says("a node needs itself", cu.cuGraphAddDependencies(graph, [last], [last], None, 1), "INVALID_VALUE")
    check(cu.cuGraphAddDependencies(graph, [first], [last], None, 1))
    says("a node needs another twice", cu.cuGraphAddDependencies(graph, [first], [last], None, 1), "INVALID_VALUE")
    roots = check(cu.cuGraphGetRootNodes(graph, 5))
    holds("roots", roots[1] == 1 and int(roots[0][0]) == int(first))
    holds("edges", check(cu.cuGraphGetEdges(graph))[3] == 1)
    holds("what a node needs", check(cu.cuGraphNodeGetDependencies(last))[2] == 1)
    holds("who needs a node", check(cu.cuGraphNodeGetDependentNodes(first))[2] == 1)
    run = check(cu.cuGraphInstantiate(graph, 0))
    check(cu.cuMemsetD32(case.data, 1, N))
    check(cu.cuGraphLaunch(run, 0))
    holds("what is needed runs first, whenever it was added", case.value() == 12)

    clone = check(cu.cuGraphClone(graph))
    twin = check(cu.cuGraphNodeFindInClone(first, clone))
    parameters = case.kernel(case.add, case.data, 100)
    check(cu.cuGraphKernelNodeSetParams(twin, parameters))
    check(cu.cuGraphLaunch(run, 0))
    holds("a clone's node is another", case.value() == 34)
    info = check(cu.cuGraphExecUpdate(run, clone))
    holds("an instance takes a clone's parameters", int(info.result) == 0)
    check(cu.cuMemsetD32(case.data, 0, N))
    check(cu.cuGraphLaunch(run, 0))
    holds("and runs with them", case.value() == 200)
    parameters = case.kernel(case.add, case.data, 3)
    check(cu.cuGraphExecKernelNodeSetParams(run, first, parameters))
    check(cu.cuMemsetD32(case.data, 0, N))
    check(cu.cuGraphLaunch(run, 0))
    holds("its nodes keep their names", case.value() == 6)
    check(cu.cuGraphNodeSetEnabled(run, last, 0))
    check(cu.cuGraphLaunch(run, 0))
    holds("a node that is switched off does not run", case.value() == 9)
    check(cu.cuGraphAddEmptyNode(clone, None, 0))
    update = cu.cuGraphExecUpdate(run, clone)
    holds("another shape is refused", code(update) == "GRAPH_EXEC_UPDATE_FAILURE")
    check(cu.cuGraphAddDependencies(graph, [last], [first], None, 1))
    says("a graph that goes round", cu.cuGraphInstantiate(graph, 0), "INVALID_VALUE")
    check(cu.cuGraphRemoveDependencies(graph, [last], [first], None, 1))
    check(cu.cuGraphDestroyNode(last))
    holds("a node is gone with its edges", check(cu.cuGraphGetEdges(graph))[3] == 0)
    says("a destroyed node", cu.cuGraphNodeGetType(last), "INVALID_VALUE")
    check(cu.cuGraphDestroy(clone))
    says("a node of a destroyed graph", cu.cuGraphNodeGetType(twin), "INVALID_VALUE")
    says("a graph destroyed twice", cu.cuGraphDestroy(clone), "INVALID_VALUE")
    nested(case, graph)


def nested(case: Case, inner) -> None:
    """Graphs in graphs, with fills, events and memory nodes."""
    outer, event = check(cu.cuGraphCreate(0)), check(cu.cuEventCreate(0))
    fill = cu.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.elementSize, fill.width, fill.height, fill.value = case.data, 4, N, 1, 7
    begin = check(cu.cuGraphAddMemsetNode(outer, None, 0, fill, case.context))
    child = check(cu.cuGraphAddChildGraphNode(outer, [begin], 1, inner))
    check(cu.cuGraphAddEventRecordNode(outer, [child], 1, event))
    holds("an inner graph is a copy", int(check(cu.cuGraphChildGraphNodeGetGraph(child))) != int(inner))
    says(
        "an inner graph is its node's",
        cu.cuGraphDestroy(check(cu.cuGraphChildGraphNodeGetGraph(child))),
        "INVALID_VALUE",
    )
    says("a graph in itself", cu.cuGraphAddChildGraphNode(outer, None, 0, outer), "INVALID_VALUE")
    run = check(cu.cuGraphInstantiate(outer, 0))
    check(cu.cuGraphLaunch(run, 0))
    holds("graphs in graphs run", case.value() == 12)
    says("an event of a graph is reached", cu.cuEventQuery(event), "SUCCESS")
    fill.value = 20
    check(cu.cuGraphExecMemsetNodeSetParams(run, begin, fill, case.context))
    check(cu.cuGraphLaunch(run, 0))
    holds("a fill is changed in an instance", case.value() == 25)
    holds("and not in the graph", check(cu.cuGraphMemsetNodeGetParams(begin)).value == 7)
    says("a node's parameters as another type's", cu.cuGraphHostNodeGetParams(begin), "INVALID_VALUE")
    says(
        "a node of another type changed", cu.cuGraphExecEventRecordNodeSetEvent(run, begin, event), "INVALID_VALUE"
    )


def captures(case: Case) -> None:
    first, second = (check(cu.cuStreamCreate(1)) for _ in range(2))
    fork, join = (check(cu.cuEventCreate(2)) for _ in range(2))
    other = upload(np.zeros(N, np.int32))
    check(cu.cuStreamBeginCapture(first, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    launch(case.add, 1, N, case.data, 1, stream=first)
    check(cu.cuEventRecord(fork, first))
    check(cu.cuStreamWaitEvent(second, fork, 0))
    launch(case.add, 1, N, other, 2, stream=second)
    launch(case.twice, 1, N, case.data, stream=first)
    check(cu.cuEventRecord(join, second))
    check(cu.cuStreamWaitEvent(first, join, 0))
    launch(case.add, 1, N, other, 3, stream=first)
    graph = check(cu.cuStreamEndCapture(first))
    nodes = check(cu.cuGraphGetNodes(graph, 8))
    shape = [check(cu.cuGraphNodeGetDependencies(node))[2] for node in nodes[0][: nodes[1]]]
    holds("a capture over two streams forks and joins", shape == [0, 1, 1, 2])


def devices(case: Case) -> None:
    name = check(cu.cuDeviceGetName(100, 0))
    holds("a name", name.rstrip(b"\0"))
    says("a device that is not there", cu.cuDeviceGet(99), "INVALID_DEVICE")
    says("a negative device", cu.cuDeviceGet(-1), "INVALID_DEVICE")
    says(
        "an attribute that is none",
        cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX, 0),
        "INVALID_VALUE",
    )
    bus = check(cu.cuDeviceGetPCIBusId(20, 1))
    holds("a device by its bus", int(check(cu.cuDeviceGetByPCIBusId(bus.rstrip(b"\0")))) == 1)
    errors = [each for each in cu.CUresult if code(cu.cuGetErrorName(each)) != "SUCCESS"]
    holds("every error has a name", not errors)
    holds("its own", all(check(cu.cuGetErrorName(each)).decode() == each.name for each in cu.CUresult))


def pools(case: Case) -> None:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = check(cu.cuMemPoolCreate(properties))
    taken = check(cu.cuMemAllocFromPoolAsync(1 << 20, pool, 0))
    used = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    holds("a pool counts", int(check(cu.cuMemPoolGetAttribute(pool, used))) == 1 << 20)
    check(cu.cuMemFreeAsync(taken, 0))
    check(cu.cuCtxSynchronize())
    holds("and gets it back", int(check(cu.cuMemPoolGetAttribute(pool, used))) == 0)
    location = cu.CUmemLocation()
    location.type, location.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 1
    holds("other GPUs reach it", int(check(cu.cuMemPoolGetAccess(pool, location))) == 3)
    check(cu.cuMemPoolDestroy(pool))
    says("a pool destroyed twice", cu.cuMemPoolDestroy(pool), "INVALID_VALUE")
    says("the default pool destroyed", cu.cuMemPoolDestroy(check(cu.cuDeviceGetDefaultMemPool(0))), "INVALID_VALUE")


def virtual(case: Case) -> None:
    """Virtual addresses and physical memory, reserved separately."""
    prop, access = cu.CUmemAllocationProp(), cu.CUmemAccessDesc()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.requestedHandleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    unit = check(cu.cuMemGetAllocationGranularity(prop, cu.CUmemAllocationGranularity_flags(0)))
    before = check(cu.cuMemGetInfo())[0]
    start = int(check(cu.cuMemAddressReserve(4 * unit, 0, 0, 0)))
    first, second = (check(cu.cuMemCreate(unit, prop, 0)) for _ in range(2))
    holds("physical memory is charged", before - check(cu.cuMemGetInfo())[0] == 2 * unit)
    says("more than the GPU has", cu.cuMemCreate(1 << 40, prop, 0), "OUT_OF_MEMORY")
    says("part of a unit", cu.cuMemCreate(unit // 2, prop, 0), "INVALID_VALUE")
    check(cu.cuMemMap(start, unit, 0, first, 0))
    check(cu.cuMemMap(start + unit, unit, 0, second, 0))
    says("mapped twice", cu.cuMemMap(start, unit, 0, second, 0), "INVALID_VALUE")
    says("mapped where nothing is reserved", cu.cuMemMap(start + 4 * unit, unit, 0, first, 0), "INVALID_VALUE")
    says("used without access", cu.cuMemsetD8(start, 1, unit), "INVALID_VALUE")
    check(cu.cuMemSetAccess(start, 2 * unit, [access], 1))
    check(cu.cuMemsetD32(start, 5, 2 * unit // 4))
    launch(case.add, 1, N, cu.CUdeviceptr(start + unit), 3)
    check(cu.cuCtxSynchronize())
    values = download(start + unit - 4 * N, (2 * N,), np.int32)
    holds("copies go over neighbours", (values[:N] == 5).all() and (values[N:] == 8).all())
    says("access to what is not mapped", cu.cuMemSetAccess(start, 3 * unit, [access], 1), "INVALID_VALUE")
    says("addresses freed while mapped", cu.cuMemAddressFree(start, 4 * unit), "INVALID_VALUE")
    shared = int(check(cu.cuMemExportToShareableHandle(second, prop.requestedHandleTypes, 0)))
    again = check(cu.cuMemImportFromShareableHandle(shared, prop.requestedHandleTypes))
    os.close(shared)
    check(cu.cuMemMap(start + 2 * unit, unit, 0, again, 0))
    check(cu.cuMemSetAccess(start + 2 * unit, unit, [access], 1))
    holds("shared memory is the same", (download(start + 2 * unit, (N,), np.int32) == 8).all())
    for handle in (first, second, again):
        check(cu.cuMemRelease(handle))
    says("released twice", cu.cuMemRelease(first), "INVALID_VALUE")
    holds("memory lives while it is mapped", before - check(cu.cuMemGetInfo())[0] == 2 * unit)
    check(cu.cuMemUnmap(start, 3 * unit))
    holds("and is given back after that", check(cu.cuMemGetInfo())[0] == before)
    says("used when it is gone", cu.cuMemcpyDtoD(start, start + 8, 4), "INVALID_VALUE")
    check(cu.cuMemAddressFree(start, 4 * unit))
    says("addresses freed twice", cu.cuMemAddressFree(start, 4 * unit), "INVALID_VALUE")


def forks(case: Case) -> None:
    child = os.fork()
    if not child:
        codes = (code(cu.cuInit(0)), code(cu.cuCtxSynchronize()), code(cu.cuMemAlloc(4)))
        os._exit(0 if codes == ("NOT_INITIALIZED",) * 3 else 1)
    holds("a child of fork has no CUDA, and does not hang", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
    launch(case.add, 1, N, case.data, 1)
    says("and its parent goes on", cu.cuCtxSynchronize(), "SUCCESS")


def main() -> None:
    case = Case()
    for area in (
        memory,
        boxes,
        pointers,
        functions,
        contexts,
        streams,
        graphs,
        captures,
        devices,
        pools,
        virtual,
        forks,
    ):
        area(case)
    print(json.dumps(found))


main()
