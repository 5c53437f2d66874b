"""Shared by the client programs: the driver API through cuda-bindings, with errors raised."""

import ctypes
import os
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc


class Failed(Exception):
    def __init__(self, code: Any) -> None:
        super().__init__(code.name)
        self.code = code


def check(result: tuple) -> Any:
    if int(result[0]):
        raise Failed(result[0])
    return result[1] if len(result) == 2 else result[1:]


def ptx(source: str, arch: str = "compute_86", *more: str) -> bytes:
    """Compile CUDA C; `options` are passed to the compiler."""
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), f"-I{os.environ['CUDA_PATH']}/include".encode()]
    options += [option.encode() for option in more]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if int(status):
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    text = b" " * check(nvrtc.nvrtcGetPTXSize(program))
    check(nvrtc.nvrtcGetPTX(program, text))
    return text


def start(device: int = 0) -> Any:
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(device))))
    check(driver.cuCtxSetCurrent(context))
    return context


def load(text: bytes) -> Any:
    buffer = ctypes.create_string_buffer(text)
    return check(driver.cuModuleLoadData(ctypes.addressof(buffer)))


def function(module: Any, name: str) -> Any:
    return check(driver.cuModuleGetFunction(module, name.encode()))


def launch(kernel: Any, grid: int, block: int, *values: Any, shared: int = 0, stream: Any = 0) -> None:
    """Launch a kernel; device pointers are passed unchanged, ints as 32 bits, floats as f32."""
    kinds = tuple({int: ctypes.c_int, float: ctypes.c_float}.get(type(value)) for value in values)
    check(driver.cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, (values, kinds), 0))


def upload(array: np.ndarray) -> Any:
    pointer = check(driver.cuMemAlloc(array.nbytes))
    check(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer


def download(pointer: Any, like: np.ndarray) -> np.ndarray:
    result = np.empty_like(like)
    check(driver.cuMemcpyDtoH(result.ctypes.data, pointer, result.nbytes))
    return result
