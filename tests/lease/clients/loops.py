"""Keep a GPU busy through a library until killed: `loops.py cuda-bindings|numba|tinygrad`.

Prints its PID when it is about to launch. Kernels sleep for 1 ms where the library allows it, so that in modeled
time they need almost no CPU time.
"""

import os
import sys
from collections.abc import Callable

from twins import PTX


def cuda_bindings() -> Callable[[], object]:
    from cuda.bindings import driver  # noqa: PLC0415 - only the one that is asked for

    def check(answer):
        if answer[0]:
            raise SystemExit(str(answer[0]))
        return answer[1] if len(answer) > 1 else None

    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    nap = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(PTX)), b"nap"))
    return lambda: check(driver.cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))


def numba() -> Callable[[], object]:
    from numba import cuda  # noqa: PLC0415

    @cuda.jit("void()")
    def nap() -> None:
        cuda.nanosleep(998_000)

    return lambda: nap[1, 1]()


def tinygrad() -> Callable[[], object]:
    os.environ["DEV"] = "CUDA"
    from tinygrad import Tensor, TinyJit  # noqa: PLC0415

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x @ x).relu().realize()

    x = Tensor.rand(64, 64).realize()
    return lambda: step(x).numpy()


def main() -> None:
    step = {"cuda-bindings": cuda_bindings, "numba": numba, "tinygrad": tinygrad}[sys.argv[1]]()
    print(os.getpid(), flush=True)
    while True:
        step()


if __name__ == "__main__":
    main()
