"""Allocate and free at random; print the most that was charged too little and too much, and what stays charged."""

import json
import random
import sys

from driver import byref, c_size_t, c_uint64, check, cuda, start, strict

MIB = 1 << 20
CONTEXT = 100 * MIB


def charged() -> int:
    free, total = c_size_t(), c_size_t()
    check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return total.value - free.value - CONTEXT


def main(seed: int) -> None:
    dice = random.Random(seed)
    start()
    empty = strict.strict_memory(0)
    held: list[c_uint64] = []
    less = more = 0
    for _ in range(600):
        if held and dice.random() < 0.45:
            check(cuda.cuMemFree_v2(held.pop(dice.randrange(len(held)))))
        else:
            size = dice.choice((1, 512, 4096, 100_000, MIB - 512, MIB, 2 * MIB, 2 * MIB + 1, 5 * MIB + 7))
            pointer = c_uint64()
            check(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)))
            held.append(pointer)
        taken = strict.strict_memory(0) - empty
        less, more = max(less, taken - charged()), max(more, charged() - taken)
    for pointer in held:
        check(cuda.cuMemFree_v2(pointer))
    print(json.dumps([less, more, charged()]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
