"""Many processes on one GPU: all are served, memory is never given twice, and all of it is released."""

import json
import subprocess
import sys

from tests.softgpu.conftest import Softgpu

# Each compiles the same new module; on a signal it allocates memory until that fails and prints how much it got.
WORKER = """
import ctypes, sys
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
context, module = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
text = b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry many() { ret; }\\n"
assert cuda.cuModuleLoadData(ctypes.byref(module), text) == 0
print("ready", flush=True)
sys.stdin.readline()
taken = 0
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0:
    taken += 1
print(taken, flush=True)
sys.stdin.read()
"""
PROCESSES = 24
MEMORY_MIB, CONTEXT_MIB = 4096, 128

PARENT = f"""
import json, os, socket, subprocess, sys
workers = [
    subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range({PROCESSES})
]
for worker in workers:
    assert worker.stdout.readline() == "ready\\n"
for worker in workers:
    print("go", file=worker.stdin, flush=True)
taken = [int(worker.stdout.readline()) for worker in workers]
def state():
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ["MILLIGPU_SOFTGPU"] + "/control.sock")
        control.shutdown(socket.SHUT_WR)
        return json.load(control.makefile())[0]
full = state()
for worker in workers[::2]:
    worker.kill()
for worker in workers[1::2]:
    worker.stdin.close()
codes = [worker.wait() for worker in workers]
while state()["processes"]:
    pass
result = {{"taken": taken, "full": full["used"], "processes": len(full["processes"]), "after": state()["used"]}}
print(json.dumps(result))
"""


def test_processes_share_gpu_memory_to_the_byte_and_release_it(softgpu: Softgpu) -> None:
    done: subprocess.CompletedProcess[str] = softgpu(
        "exec", "--memory", f"{MEMORY_MIB}Mi", "--", sys.executable, "-c", PARENT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["processes"] == PROCESSES
    assert sum(result["taken"]) == MEMORY_MIB - PROCESSES * CONTEXT_MIB
    assert result["full"] == MEMORY_MIB << 20
    assert result["after"] == 0
