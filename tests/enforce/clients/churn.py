"""Allocate and free at random for SECONDS, with seed SEED, after a line of input; then free all and print a line.

It waits for the end of its input, so that a test can read the memory account or kill it.
"""

import random
import sys
import time

from cuda import MIB, OUT_OF_MEMORY, allocate, byref, c_size_t, c_uint64, c_void_p, check, cuda, free, start


def take(size: int, ordered: bool) -> tuple[int, int]:
    if not ordered:
        return allocate(size)
    pointer = c_uint64()
    return cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), c_void_p()), pointer.value


def give(pointer: int, ordered: bool) -> None:
    check(cuda.cuMemFreeAsync(c_uint64(pointer), c_void_p()) if ordered else free(pointer))


def main() -> None:
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    start()
    dice = random.Random(seed)
    held: list[tuple[int, bool]] = []
    refused = 0
    print("started", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if held and dice.random() < 0.5:
            give(*held.pop(dice.randrange(len(held))))
            continue
        ordered = dice.random() < 0.3
        status, pointer = take(dice.randrange(1, 24 * MIB), ordered)
        if status == OUT_OF_MEMORY:
            refused += 1
        else:
            check(status)
            held.append((pointer, ordered))
    for each in held:
        give(*each)
    check(cuda.cuCtxSynchronize())
    print("done", refused, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
