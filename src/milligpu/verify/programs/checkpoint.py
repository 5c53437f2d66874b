"""Checkpoint a child process that holds GPU memory, restore it, and let it look whether the memory is unchanged."""

import os
import subprocess
import sys

from driver import MIB, NOT_SUPPORTED, allocate, answer, byref, c_int, c_size_t, c_uint64, call, check, cuda, start

SIZE, PATTERN = 8 * MIB, 0x5AC3F00D
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")


def hold():
    """Fill memory, wait, and look at it again."""
    start()
    status, pointer = allocate(SIZE)
    check(status, "cuMemAlloc")
    call("cuMemsetD32_v2", c_uint64(pointer), PATTERN, c_size_t(SIZE // 4))
    call("cuCtxSynchronize")
    print("ready", flush=True)
    sys.stdin.readline()
    back = bytearray(SIZE)
    import ctypes

    call("cuMemcpyDtoH_v2", (ctypes.c_char * SIZE).from_buffer(back), c_uint64(pointer), c_size_t(SIZE))
    print(back == PATTERN.to_bytes(4, "little") * (SIZE // 4), flush=True)


def main():
    if sys.argv[1:] == ["hold"]:
        hold()
        return
    call("cuInit", 0)
    if not hasattr(cuda, "cuCheckpointProcessLock"):
        answer(supported=False, steps=[])
        return
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, __file__, "hold"], stdin=pipe, stdout=pipe, text=True)
    if child.stdout.readline() != "ready\n":
        sys.exit("the process to checkpoint did not start")
    steps = []
    for step in STEPS:
        status = getattr(cuda, f"cuCheckpointProcess{step}")(c_int(child.pid), None)
        steps.append([step, status])
        if status:
            break
    state = c_int(-1)
    if not steps[-1][1]:
        call("cuCheckpointProcessGetState", c_int(child.pid), byref(state))
    else:
        os.kill(child.pid, 9)
    said, _ = child.communicate("go\n" if child.poll() is None and not steps[-1][1] else None)
    answer(
        supported=steps[0][1] not in NOT_SUPPORTED, steps=steps, state=state.value, unchanged=said.strip() == "True"
    )


main()
