"""Launch kernels of so many us; print how many wake-ups and messages to the arbiter the launches caused."""

import ctypes
import json
import sys

from driver import c_uint64, check, cuda, functions, launch, new_stream, start

LAUNCHES = 4000
counts = ctypes.CDLL(None)


def count(name: str) -> int:
    return c_uint64.in_dll(counts, f"counted_{name}").value


start()
kernels, stream = functions(f"us{sys.argv[1]}", f"us{sys.argv[1]}"), new_stream()
for at in range(600):
    launch(kernels[at % 2], stream)
check(cuda.cuCtxSynchronize())
launch(kernels[0], stream)
before = count("wakes"), count("messages")
assert before[1] > 0, "no message was counted: the library does not use this program's functions"
for at in range(LAUNCHES):
    launch(kernels[at % 2], stream)
print(json.dumps([(count("wakes") - before[0]) / LAUNCHES, (count("messages") - before[1]) / LAUNCHES]))
