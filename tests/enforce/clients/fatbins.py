"""Load fat binaries in every way; prints {file: [bytes taken by each way, ..., bytes left after unloading]}."""

import ctypes
import json
import sys
from pathlib import Path

from cuda import byref, c_void_p, check, cuda, memory, start


class Wrapper(ctypes.Structure):
    """What compilers link into programs: a pointer to the fat binary."""

    _fields_ = (("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("data", c_void_p), ("more", c_void_p))


NO_OPTIONS = (None, None, 0, None, None, 0)


def in_use() -> int:
    free, total = memory()
    return total - free


def main() -> None:
    start()
    results = {}
    for file in sys.argv[1:]:
        image = ctypes.create_string_buffer(Path(file).read_bytes())
        wrapper = Wrapper(0x466243B1, 1, ctypes.addressof(image), None)
        ways = (
            (lambda made, image=image: cuda.cuModuleLoadFatBinary(made, image), cuda.cuModuleUnload),
            (lambda made, wrapper=wrapper: cuda.cuModuleLoadData(made, byref(wrapper)), cuda.cuModuleUnload),
            (lambda made, file=file: cuda.cuModuleLoad(made, file.encode()), cuda.cuModuleUnload),
            (lambda made, image=image: cuda.cuLibraryLoadData(made, image, *NO_OPTIONS), cuda.cuLibraryUnload),
            (
                lambda made, file=file: cuda.cuLibraryLoadFromFile(made, file.encode(), *NO_OPTIONS),
                cuda.cuLibraryUnload,
            ),
        )
        taken = []
        before = in_use()
        for load, unload in ways:
            made = c_void_p()
            check(load(byref(made)))
            taken.append(in_use() - before)
            check(unload(made))
        results[file] = [*taken, in_use() - before]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
