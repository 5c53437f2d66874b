"""Keep a GPU busy: `busy.py DEVICE MIB [copy | wild]`. Prints `running`, and at the end the error.

It runs a kernel that counts. With `copy` it copies all its memory to the GPU; with `wild` its kernel writes to an
invalid address.
"""

import ctypes
import sys

PTX = b"""
.version 7.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u32 times)
{
    .reg .u32 %r<4>;
    .reg .pred %p<2>;
    .shared .u32 sink;
    ld.param.u32 %r1, [times];
    mov.u32 %r2, 0;
again:
    mad.lo.u32 %r3, %r2, %r3, 12345;
    add.u32 %r2, %r2, 1;
    st.shared.u32 [sink], %r3;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra again;
    ret;
}
.visible .entry wild(.param .u32 times)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 4096;
    ld.param.u32 %r1, [times];
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def main() -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, size, how = int(sys.argv[1]), int(sys.argv[2]) << 20, "".join(sys.argv[3:])
    context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"wild" if how == "wild" else b"spin") == 0
    times = ctypes.c_uint(20_000_000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(times))
    host = ctypes.create_string_buffer(size)
    print("running", flush=True)
    while True:
        if how == "copy":
            assert cuda.cuMemcpyHtoD_v2(memory, host, ctypes.c_size_t(size)) == 0
            continue
        status = cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) or cuda.cuCtxSynchronize()
        if status:
            print(status, flush=True)
            return 0


sys.exit(main())
