"""Kernels of known duration in modeled time: what CUDA events measure, alone and next to other processes.

A parent starts children on the same GPU and tells them when to launch; each prints the milliseconds between the
ends of its kernels.
"""

import ctypes
import itertools
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
from driver import check, driver, function, launch, load, ptx, start

SOURCE = """
extern "C" __global__ void nap(unsigned ns) { __nanosleep(ns); }
extern "C" __global__ void count(int n, int *out)
{ int v = threadIdx.x; for (int i = 0; i < n; i++) v = v * 3 + (v >> 3); out[threadIdx.x] = v; }
extern "C" __global__ void spin(long long ns, long long *out) {
  long long first, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(first));
  long long cycles = clock64();
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - first < ns);
  out[0] = now - first; out[1] = clock64() - cycles; }
"""
MS = 1_000_000


def state() -> dict:
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ["MILLIGPU_SOFTGPU"] + "/control.sock")
        control.shutdown(socket.SHUT_WR)
        return json.load(control.makefile())[0]


class Kernels:
    def __init__(self) -> None:
        start()
        module = load(ptx(SOURCE))
        self.nap, self.count, self.spin = (function(module, name) for name in ("nap", "count", "spin"))

    def times(self, run, number: int) -> list[float]:
        """Milliseconds between the ends of launches that were all queued at once."""
        events = [check(driver.cuEventCreate(0)) for _ in range(number + 1)]
        run()
        check(driver.cuEventRecord(events[0], 0))
        for event in events[1:]:
            run()
            check(driver.cuEventRecord(event, 0))
        check(driver.cuEventSynchronize(events[-1]))
        return [check(driver.cuEventElapsedTime(*pair)) for pair in itertools.pairwise(events)]

    def naps(self, nanoseconds: int, number: int) -> list[float]:
        return self.times(lambda: launch(self.nap, 1, 1, nanoseconds), number)


def child() -> None:
    kernels = Kernels()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(kernels.naps(*json.loads(line))), flush=True)


def spawn() -> subprocess.Popen:
    command = [sys.executable, __file__, "child"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process: subprocess.Popen, nanoseconds: int, number: int) -> None:
    print(json.dumps([nanoseconds, number]), file=process.stdin, flush=True)


def hear(process: subprocess.Popen) -> list[float]:
    return json.loads(process.stdout.readline())


def busy(process: subprocess.Popen) -> float:
    return sum(each["busy_ns"] for each in state()["processes"] if each["pid"] == process.pid) / MS


def together() -> dict:
    """Two processes with 1 ms kernels, and the GPU time that the GPU reports for each."""
    children = [spawn(), spawn()]
    for each in children:
        tell(each, MS, 60)
    gaps = [hear(each) for each in children]
    used = [busy(each) for each in children]
    for each in children:
        each.stdin.close()
        each.wait()
    return {"gaps": gaps, "busy": used}


def killed() -> dict:
    """A process that is killed with seconds of queued work frees the GPU for others."""
    victim, other = spawn(), spawn()
    tell(victim, 50 * MS, 100)
    while busy(victim) < 60:
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    while len(state()["processes"]) > 2:  # this process and the other
        time.sleep(0.01)
    tell(other, 4 * MS, 10)
    gaps = hear(other)
    other.stdin.close()
    other.wait()
    return {"gaps": gaps}


def alone(kernels: Kernels) -> dict:
    out = check(driver.cuMemAlloc(4096))
    small, large = (
        kernels.times(lambda n=n: launch(kernels.count, 1, 1, n, out), 5)[-1] for n in (10_000, 100_000)
    )
    arguments = ((5 * MS, out), (ctypes.c_longlong, None))
    spins = kernels.times(lambda: driver.cuLaunchKernel(kernels.spin, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0), 5)
    seen = np.zeros(2, np.int64)
    check(driver.cuMemcpyDtoH(seen.ctypes.data, out, seen.nbytes))
    return {"naps": kernels.naps(3 * MS, 20), "small": small, "large": large, "spins": spins,
            "timer": int(seen[0]), "cycles": int(seen[1])}  # fmt: skip


def main() -> None:
    kernels = Kernels()
    result = {"alone": alone(kernels), "together": together(), "killed": killed()}
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    late = state()["late"]["launches"]
    result["burning"] = kernels.naps(5 * MS, 20)
    result["late"] = state()["late"]["launches"] - late
    for burner in burners:
        burner.kill()
        burner.wait()
    print(json.dumps(result))


if __name__ == "__main__":
    child() if len(sys.argv) > 1 else main()
