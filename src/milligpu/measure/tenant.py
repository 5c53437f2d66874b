"""A tenant of an experiment on a cluster: it takes memory, computes all the time, or answers requests.

Its text is sent to a container that has Python and nothing of milligpu, so it uses the standard library only:

    python3 -c TEXT hold
    python3 -c TEXT busy
    python3 -c TEXT serve KERNEL_US CPU_MS [PROCESSES]
"""

import ctypes
import os
import sys
import time

# A kernel that occupies the GPU for a known time, by the GPU's own clock.
PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry occupy(.param .u64 ns)
{
.reg .pred %p;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [ns];
mov.u64 %rd2, %globaltimer;
again:
mov.u64 %rd3, %globaltimer;
sub.u64 %rd4, %rd3, %rd2;
setp.lt.u64 %p, %rd4, %rd1;
@%p bra again;
ret;
}
"""
# A longer kernel would keep others from their turn, because a GPU does not interrupt one.
KERNEL_NS = 1_000_000
AHEAD = 20
# Where containers with a share have their limits; those with a whole GPU have none.
LIMITS = "/run/milligpu/tenant/limits"


class TenantGpu:
    """The container's GPU, through the driver library that it finds."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._kernel, self._one, self._none = ctypes.c_void_p(), ctypes.c_uint(1), ctypes.c_uint(0)
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuInit", 0)
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._check("cuCtxSetCurrent", context)
        self._check("cuModuleLoadData", ctypes.byref(module), PTX)
        self._check("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"occupy")

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name} returned {code}")

    def take_free_memory(self) -> int:
        """Allocate what is free of the share, and return the bytes."""
        free, total, memory = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
        self._check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self._check("cuMemAlloc_v2", ctypes.byref(memory), free)
        return free.value

    def occupy(self, nanoseconds: int) -> None:
        """Launch kernels that take this long, and wait for them."""
        one = self._one
        while nanoseconds > 0:
            length = ctypes.c_uint64(min(KERNEL_NS, nanoseconds))
            arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
            grid = (one, one, one, one, one, one)
            self._check("cuLaunchKernel", self._kernel, *grid, self._none, None, arguments, None)
            nanoseconds -= KERNEL_NS
        self._check("cuCtxSynchronize")


def say(text: str) -> None:
    """Write a line of the log, with the time."""
    sys.stdout.write(f"{time.time():.3f} {text}\n")
    sys.stdout.flush()


def burn(seconds: float) -> None:
    """Use this much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def become(processes: int) -> None:
    """Return in this many new processes; the first waits for them, and ends as soon as one does."""
    for _ in range(processes):
        if not os.fork():
            return
    os.wait()
    raise SystemExit(1)


def main(mode: str, kernel_us: float = 0.0, cpu_ms: float = 0.0, processes: float = 1) -> None:
    """Do what the mode says until the container is stopped; each line of the log begins with the time."""
    if processes > 1:
        become(int(processes))
    gpu = TenantGpu()
    if mode == "hold":
        say(f"held {gpu.take_free_memory()}")
    else:
        gpu.occupy(KERNEL_NS)
        say("ready shared" if os.path.exists(LIMITS) else "ready bare")
    while mode == "busy":
        gpu.occupy(AHEAD * KERNEL_NS)
    while mode == "serve":
        begin = time.monotonic()
        burn(cpu_ms / 1000)
        gpu.occupy(round(1000 * kernel_us))
        say(f"answered {1000 * (time.monotonic() - begin):.2f}")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
