#!/usr/bin/python3
"""A small training that takes the options of tf_cnn_benchmarks.py, which needs the CUDA runtime and a real GPU.

It moves weights towards targets by gradient descent, on the GPU, and reports as the benchmark does.
"""

import argparse
import array
import ctypes

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry descend(.param .u64 weights, .param .u64 targets, .param .f32 rate, .param .u32 count)
{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<6>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [weights]; ld.param.u64 %rd2, [targets];
    ld.param.f32 %f1, [rate]; ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1; @%p1 bra done;
    cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd3, %rd5; add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f2, [%rd6]; ld.global.f32 %f3, [%rd7];
    sub.f32 %f4, %f3, %f2; fma.rn.f32 %f5, %f4, %f1, %f2;
    st.global.f32 [%rd6], %f5;
done:
    ret;
}
"""
COUNT, STEPS, RATE, THREADS = 4096, 100, 0.1, 256


def check(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA error {status}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--local_parameter_device", "--variable_update", "--model", "--use_nccl"):
        parser.add_argument(name)
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--num_gpus", type=int)
    options = parser.parse_args()
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    weights, targets, count = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
    total = ctypes.c_size_t()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"descend"))
    size = ctypes.c_size_t(4 * COUNT)
    for pointer, value in ((weights, 0.0), (targets, 1.0)):
        data = (ctypes.c_float * COUNT)(*array.array("f", [value]) * COUNT)
        check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) or cuda.cuMemcpyHtoD_v2(pointer, data, size))
    rate, length = ctypes.c_float(RATE), ctypes.c_uint32(COUNT)
    places = (ctypes.addressof(each) for each in (weights, targets, rate, length))
    arguments = (ctypes.c_void_p * 4)(*places)
    print(f"Model: {options.model}  batch size: {options.batch_size}  GPUs: {count.value} of {options.num_gpus}")
    print(f"Memory of GPU 0: {total.value >> 20} MiB")
    result = (ctypes.c_float * COUNT)()
    for step in range(1, STEPS + 1):
        check(cuda.cuLaunchKernel(kernel, COUNT // THREADS, 1, 1, THREADS, 1, 1, 0, None, arguments, None))
        if step % 25 == 0:
            check(cuda.cuMemcpyDtoH_v2(result, weights, size))
            loss = sum((1.0 - each) ** 2 for each in result) / COUNT
            print(f"step {step} loss {loss:.6f}", flush=True)


main()
