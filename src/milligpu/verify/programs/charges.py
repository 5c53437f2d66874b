"""Take memory in steps; after each, print what the program is charged, and wait for a line on stdin.

The fat binary holds PTX for two architectures, each with one variable: 16 MiB for compute capability 5.0, and
32 MiB for 9.0. A GPU loads one of them. NVIDIA's nvFatbin packed it; tests/verify/test_programs.py does it again.
"""

import base64
import sys

from driver import MIB, allocate, answer, byref, c_void_p, call, check, memory, start, uuid

BLOCKS, BLOCK = 32, 2 * MIB + 1
FAT_BINARY = (
    "UO1VugEAEACwAQAAAAAAAAEAAQFYAAAAgAAAAAAAAAAAAAAASAAAAAgABwAyAAAAQAAAAAUAAAARAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAABzbV81MAAAAFAAAAAAAAAAAAAAAAAAAAAudmVyc2lvbiA3LjgKLnRhcmdldCBzbV81MAouYWRkcmVzc19zaXplIDY0Ci52"
    "aXNpYmxlIC5nbG9iYWwgLmFsaWduIDQgLmI4IHJvb21bMTY3NzcyMTZdOwoudmlzaWJsZSAuZW50cnkgbm9uZSgpIHsgcmV0OyB9"
    "CgAAAAAAAAEAAQFYAAAAgAAAAAAAAAAAAAAASAAAAAgABwBaAAAAQAAAAAUAAAARAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABzbV85"
    "MAAAAFAAAAAAAAAAAAAAAAAAAAAudmVyc2lvbiA3LjgKLnRhcmdldCBzbV85MAouYWRkcmVzc19zaXplIDY0Ci52aXNpYmxlIC5n"
    "bG9iYWwgLmFsaWduIDQgLmI4IHJvb21bMzM1NTQ0MzJdOwoudmlzaWJsZSAuZW50cnkgbm9uZSgpIHsgcmV0OyB9CgAAAAAAAA=="
)


def step(name, before):
    """Report what was charged since the last step and wait until the reader has asked the driver."""
    free = memory()[0]
    answer(step=name, charged=before - free, gpu=uuid())
    sys.stdin.readline()
    return free


start()
free = step("context", memory()[1])
for _ in range(BLOCKS):
    check(allocate(BLOCK)[0], "cuMemAlloc")
free = step("granule", free)
module = c_void_p()
call("cuModuleLoadData", byref(module), base64.b64decode(FAT_BINARY))
step("fatbin", free)
