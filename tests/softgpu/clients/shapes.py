"""Kernels in the shapes of testing/ptx_shapes.py, small and large, compared with numpy's; prints {name: bool}."""

import json
import os
import sys

import numpy as np

sys.path.insert(0, os.getcwd())

from driver import download, function, launch, load, start, upload

from testing.ptx_shapes import SHAPES

THREADS = 32
WORDS = 100_000
# Numbers whose sums are exact in any order.
GIVEN = (np.arange(WORDS) * 7919 % 61 - 30).astype(np.float32)


def expected(name: str, size: int) -> np.ndarray:
    """The first word of each thread's result."""
    own = GIVEN[:THREADS]
    match name:
        case "select chain":
            return own - GIVEN[1 : size // 3 + 1].max()
        case "square chain":
            value = GIVEN[0]
            for _ in range(size // 2):
                value = value * value + value
            return own + value
        case "unrolled loop":
            return (own * own + own) * np.float32(0.5)
        case "reduction tree":
            return sum(GIVEN[32 * at : 32 * at + THREADS] for at in range(1, size // 2 + 1))
        case "branches":
            value, index = np.full(THREADS, 7, np.uint32), np.arange(THREADS, dtype=np.uint32)
            for at in range(1, size // 3 + 1):
                value = value ^ np.uint32(at * 2654435761 % 2**31)
                value = np.where(value < index, value + index, value)
            return value.view(np.float32)
        case _:
            for _ in range(size // 5):
                own = own + own
            return own


def measured(name: str, size: int) -> np.ndarray:
    kernel = function(load(SHAPES[name](size).encode()), "shape")
    out, given = upload(np.zeros(WORDS, np.float32)), upload(GIVEN)
    launch(kernel, 1, THREADS, out, given)
    return download(out, np.empty(THREADS, np.float32))


start()
with np.errstate(all="ignore"):
    same = {
        f"{name} {size}": bool(
            np.array_equal(measured(name, size).view(np.uint32), expected(name, size).view(np.uint32))
        )
        for name in SHAPES
        for size in (90, 3000)
    }
print(json.dumps(same))
