"""A graph that was built node by node, and one that was captured; each adds to a number on the GPU ten times."""

import ctypes

from driver import allocate, answer, byref, c_int, c_size_t, c_uint64, c_void_p, call, check, cuda, start

TIMES, KERNELS = 10, 8
NON_BLOCKING, GLOBAL = 1, 0
ADD = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 at) {
.reg .b64 %d<2>; .reg .b32 %r<2>;
ld.param.u64 %d1, [at]; ld.global.u32 %r1, [%d1]; add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1; ret;
}
"""


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(c_void_p)),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


start()
module, add, stream = c_void_p(), c_void_p(), c_void_p()
call("cuModuleLoadData", byref(module), ADD)
call("cuModuleGetFunction", byref(add), module, b"add")
call("cuStreamCreate", byref(stream), NON_BLOCKING)
status, number = allocate(4)
check(status, "cuMemAlloc")
at = c_uint64(number)
parameters = (c_void_p * 1)(ctypes.cast(byref(at), c_void_p))


def run(graph):
    """Launch a graph and return how much the number grew."""
    ready, result = c_void_p(), ctypes.c_uint()
    call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
    call("cuMemsetD32_v2", at, 0, c_size_t(1))
    call("cuCtxSynchronize")
    for _ in range(TIMES):
        call("cuGraphLaunch", ready, stream)
    call("cuStreamSynchronize", stream)
    call("cuMemcpyDtoH_v2", byref(result), at, c_size_t(4))
    call("cuGraphExecDestroy", ready)
    return result.value


def built():
    graph, before = c_void_p(), None
    call("cuGraphCreate", byref(graph), 0)
    one = (ctypes.c_uint * 3)(1, 1, 1)
    kernel = KernelNode(function=add, grid=one, block=one, parameters=parameters)
    for _ in range(KERNELS):
        node = c_void_p()
        call("cuGraphAddKernelNode_v2", byref(node), graph, byref(before) if before else None,
             c_size_t(1 if before else 0), byref(kernel))  # fmt: skip
        before = node
    return graph


def captured():
    """Capture in global mode, which forbids unsafe calls of the whole process while it lasts."""
    graph = c_void_p()
    call("cuStreamBeginCapture_v2", stream, c_int(GLOBAL))
    for _ in range(KERNELS):
        check(cuda.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None), "cuLaunchKernel")
    call("cuStreamEndCapture", stream, byref(graph))
    return graph


answer(expected=TIMES * KERNELS, built=run(built()), captured=run(captured()))
