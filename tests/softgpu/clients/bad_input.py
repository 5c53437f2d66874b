"""Make invalid calls of every kind; prints {case: name of the error} as JSON. Not crashing is half of the test."""

import ctypes
import json

import numpy as np
from driver import check, download, driver, function, launch, load, ptx, start, upload

SOURCE = """
extern "C" __global__ void fill(int *p, int v) { p[threadIdx.x] = v; }
extern "C" __global__ void late(int *p) { __syncthreads(); p[threadIdx.x] = 1; }
extern "C" __global__ void over(int *p) { p[threadIdx.x + (1 << 20)] = 1; }
extern "C" __global__ void stop() { asm("trap;"); }
extern "C" __global__ void half(int *p) { if (threadIdx.x < 16) { asm volatile("bar.sync 1, 64;"); } p[0] = 1; }
"""
GOOD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


def name(result) -> str:
    return result[0].name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


def jit(text: str) -> tuple[str, str]:
    """Load with an error log."""
    image, log = ctypes.create_string_buffer(text.encode("latin1")), bytearray(512)
    option = driver.CUjit_option
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    result = driver.cuModuleLoadDataEx(ctypes.addressof(image), 2, options, [log, len(log)])
    return name(result), bytes(log).rstrip(b"\0").decode()


def fault(kernel: str, *values, block: int = 32) -> list[str]:
    """Run a failing kernel in a new context: the launch, two synchronizations, an allocation."""
    context = check(driver.cuCtxCreate(None, 0, 0))
    module = load(ptx(SOURCE))
    values = values or (check(driver.cuMemAlloc(4096)),)
    kinds = tuple(ctypes.c_int if isinstance(value, int) else None for value in values)
    status = driver.cuLaunchKernel(function(module, kernel), 1, 1, 1, block, 1, 1, 0, 0, (values, kinds), 0)
    found = [name(status), name(driver.cuCtxSynchronize()), name(driver.cuCtxSynchronize())]
    found.append(name(driver.cuMemAlloc(4096)))
    check(driver.cuCtxDestroy(context))
    return found


def main() -> None:
    found: dict[str, object] = {"before cuInit": name(driver.cuCtxGetCurrent())}
    start()
    found["memory of size 0"] = name(driver.cuMemAlloc(0))
    found["memory of size 2^63"] = name(driver.cuMemAlloc(1 << 63))
    found["more than there is"] = name(driver.cuMemAlloc(check(driver.cuMemGetInfo())[1] + 1))
    pointer = check(driver.cuMemAlloc(4096))
    host = np.zeros(4096, np.uint8)
    found["copy past the end"] = name(driver.cuMemcpyHtoD(pointer, host.ctypes.data, 4097))
    found["copy to null"] = name(driver.cuMemcpyHtoD(0, host.ctypes.data, 16))
    found["copy to the host's memory"] = name(driver.cuMemcpyHtoD(host.ctypes.data, host.ctypes.data, 16))
    found["fill past the end"] = name(driver.cuMemsetD8(pointer, 0, 4097))
    check(driver.cuMemFree(pointer))
    found["double free"] = name(driver.cuMemFree(pointer))
    found["free of null"] = name(driver.cuMemFree(0))
    found["free of the host's memory"] = name(driver.cuMemFree(host.ctypes.data))
    found["free inside an allocation"] = name(driver.cuMemFree(int(upload(host)) + 16))
    found["copy from freed memory"] = name(driver.cuMemcpyDtoH(host.ctypes.data, pointer, 16))
    for kind in ("CUcontext", "CUstream", "CUevent", "CUmodule"):
        wrong = getattr(driver, kind)(0x1234)
        call = {
            "CUcontext": driver.cuCtxSetCurrent,
            "CUstream": driver.cuStreamSynchronize,
            "CUevent": driver.cuEventSynchronize,
            "CUmodule": driver.cuModuleUnload,
        }[kind]
        found[f"wrong {kind}"] = name(call(wrong))
    module = load(ptx(SOURCE))
    found["unknown function"] = name(driver.cuModuleGetFunction(module, b"none"))
    found["unknown global"] = name(driver.cuModuleGetGlobal(module, b"none"))
    kernel = function(module, "fill")
    none = ((), ())
    found["block too large"] = name(driver.cuLaunchKernel(kernel, 1, 1, 1, 1025, 1, 1, 0, 0, none, 0))
    found["empty grid"] = name(driver.cuLaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, 0, none, 0))
    found["too much shared memory"] = name(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 1 << 20, 0, none, 0))
    check(driver.cuModuleUnload(module))
    found["function of an unloaded module"] = name(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, none, 0))
    found["unknown device"] = name(driver.cuDeviceGetName(10, 99))
    found["cubin"] = jit("\x7fELF" + "x" * 60)[0]
    found["not PTX"] = jit("hello")
    found["unknown instruction"] = jit(GOOD.replace("ret;", "\n frobnicate.f32 %r1;\n ret;"))
    found["unknown register"] = jit(GOOD.replace("ret;", "add.u32 %r1, %r2, 1; ret;"))
    found["half a module"] = jit(GOOD[:-4])
    found["PTX of the future"] = jit(GOOD.replace(".version 8.0", ".version 12.0"))
    found["sound module"] = jit(GOOD)
    found["vendor's private table"] = name(driver.cuGetExportTable(driver.CUuuid()))
    found["not implemented"] = name(driver.cuMipmappedArrayCreate(driver.CUDA_ARRAY3D_DESCRIPTOR(), 1))
    found["null in a kernel"] = fault("fill", 0, 1)
    found["null in a kernel with barriers"] = fault("late", 0)
    found["far past the end"] = fault("over")
    found["trap"] = fault("stop", 0)
    found["barrier that no other thread reaches"] = fault("half")
    pointer = upload(np.zeros(32, np.int32))
    launch(function(load(ptx(SOURCE)), "fill"), 1, 32, pointer, 7)
    found["after all that"] = int(download(pointer, np.zeros(32, np.int32)).sum())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
