"""Call every function of the driver API through the limits library, and compare what the stand-in driver received.

Reads the symbols as JSON from its input; prints {symbol: difference}.
"""

import ctypes
import json
import sys

from cuda import check, cuda

ROOM = 1 << 16
# Answered by the library itself, or with a different call of the driver.
OWN = {
    "cuInit", "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemGetInfo",
    "cuMemGetInfo_v2", "cuDeviceTotalMem", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
}  # fmt: skip


class Seen(ctypes.Structure):
    """struct seen of the stand-in."""

    _fields_ = (("calls", ctypes.c_uint64), ("arguments", ctypes.c_uint64 * 16))


def arguments(kinds: list[str], buffers: list[ctypes.Array]) -> tuple[list, list[int | None]]:
    """Return what to pass, and what the driver should receive."""
    given, expected = [], []
    for at, kind in enumerate(kinds):
        if kind == "pointer":
            ctypes.memset(buffers[at], 0, ROOM)
            given.append(buffers[at])
            expected.append(ctypes.addressof(buffers[at]))
        elif kind == "struct":
            given.append((ctypes.c_byte * 0)())
            expected.append(None)
        else:
            given.append(ctypes.c_float(at + 3) if kind == "float" else ctypes.c_uint64(at + 3))
            expected.append(at + 3)
    return given, expected


def narrow(value: int) -> int:
    return value & 0xFFFFFFFF if value < 1 << 40 else value


def main() -> None:
    real = ctypes.CDLL(sys.argv[1])
    symbols = json.load(sys.stdin)
    table = (Seen * len(symbols)).in_dll(real, "standin_seen")
    buffers = [ctypes.create_string_buffer(ROOM) for _ in range(16)]
    check(cuda.cuInit(0))
    wrong = {}
    for place, (name, kinds) in enumerate(symbols):
        if name in OWN or "struct" in kinds:
            continue
        before = table[place].calls
        given, expected = arguments(kinds, buffers)
        getattr(cuda, name)(*given)
        seen = [narrow(value) for value in table[place].arguments[: len(kinds)]]
        if table[place].calls == before:
            wrong[name] = "did not reach the driver"
        elif seen != expected:
            wrong[name] = f"{seen} instead of {expected}"
    print(json.dumps({"checked": len(symbols), "wrong": wrong}))


if __name__ == "__main__":
    main()
