"""Unmodified numba-cuda on the software GPU: its kernels compared with numpy."""

import json
import math
import warnings

import numpy as np
from numba import cuda, float32, int32, uint64

warnings.filterwarnings("ignore")  # warnings about occupancy and copies
BLOCK = 128
RNG = np.random.default_rng(3)


@cuda.jit
def reduce_blocks(values, sums):
    window = cuda.shared.array(BLOCK, float32)
    me, at = cuda.threadIdx.x, cuda.grid(1)
    window[me] = values[at] if at < values.size else 0
    cuda.syncthreads()
    width = BLOCK // 2
    while width:
        if me < width:
            window[me] += window[me + width]
        cuda.syncthreads()
        width //= 2
    if me == 0:
        sums[cuda.blockIdx.x] = window[0]


@cuda.jit
def warp_sums(values, sums, votes):
    at = cuda.grid(1)
    value = values[at]
    vote = cuda.ballot_sync(0xFFFFFFFF, value > 0)
    every, some = cuda.all_sync(0xFFFFFFFF, value > -10), cuda.any_sync(0xFFFFFFFF, value > 10)
    distance = 16
    while distance:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        distance //= 2
    if at % 32 == 0:
        sums[at // 32] = value
        votes[at // 32] = vote if every and not some else 0


@cuda.jit
def histogram(values, bins, highest, total):
    at = cuda.grid(1)
    if at < values.size:
        cuda.atomic.add(bins, values[at] % bins.size, 1)
        cuda.atomic.max(highest, 0, values[at])
        cuda.atomic.add(total, 0, float32(1.5))


@cuda.jit
def count_up(counter, old):
    if cuda.atomic.cas(counter, 0, cuda.threadIdx.x, cuda.threadIdx.x + 1) == cuda.threadIdx.x:
        old[0] += 1


@cuda.jit
def multiply(a, b, c):
    first = cuda.shared.array((16, 16), float32)
    second = cuda.shared.array((16, 16), float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for part in range(a.shape[1] // 16):
        first[i, j] = a[x, j + part * 16]
        second[i, j] = b[i + part * 16, y]
        cuda.syncthreads()
        for k in range(16):
            total += first[i, k] * second[k, j]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit(device=True)
def wave(x):
    return math.sin(x) + math.exp(-x * x) + math.sqrt(abs(x)) + math.pow(abs(x) + 1, 0.3) + math.atan2(x, 2.0)


@cuda.jit
def functions(x, out):
    table = cuda.local.array(8, int32)
    for at in cuda.grid(1), cuda.grid(1):
        table[at % 8] = at
    at = cuda.grid(1)
    if at < x.size:
        out[at] = wave(x[at]) + table[at % 8]


@cuda.jit
def scale(values, factor):
    for at in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        values[at] = values[at] * factor


@cuda.jit
def random_walk(states, steps):
    at = cuda.grid(1)
    state = uint64(states[at])
    for _ in range(steps):
        state ^= state << uint64(13)
        state ^= state >> uint64(7)
        state ^= state << uint64(17)
    states[at] = state


def reductions() -> bool:
    values = RNG.standard_normal(5000).astype(np.float32)
    sums = np.zeros(40, np.float32)
    reduce_blocks[40, BLOCK](values, sums)
    return np.allclose(sums, np.pad(values, (0, 120)).reshape(40, BLOCK).sum(1), atol=1e-3)


def warps() -> bool:
    values = RNG.standard_normal(256).astype(np.float32)
    sums, votes = np.zeros(8, np.float32), np.zeros(8, np.uint32)
    warp_sums[2, 128](values, sums, votes)
    expected = [sum(1 << lane for lane in range(32) if row[lane] > 0) for row in values.reshape(8, 32)]
    return np.allclose(sums, values.reshape(8, 32).sum(1), atol=1e-4) and votes.tolist() == expected


def atomics() -> bool:
    values = RNG.integers(0, 1000, 10_000).astype(np.int32)
    bins, highest, total = np.zeros(17, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    histogram[80, 128](values, bins, highest, total)
    counter, old = np.zeros(1, np.int32), np.zeros(1, np.int32)
    count_up[1, 64](counter, old)
    good = (bins == np.bincount(values % 17, minlength=17)).all() and highest[0] == values.max()
    return bool(good and total[0] == 15_000 and counter[0] >= 1)


def matrices() -> bool:
    a, b = (RNG.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    multiply[(4, 4), (16, 16)](a, b, c)
    return np.allclose(c, a @ b, atol=1e-3)


def mathematics() -> bool:
    x, out = np.linspace(-3, 3, 1000), np.zeros(1000)
    functions[8, 128](x, out)
    expected = np.sin(x) + np.exp(-x * x) + np.sqrt(abs(x)) + (abs(x) + 1) ** 0.3 + np.arctan2(x, 2)
    return np.allclose(out, expected + np.arange(1000))


def integers() -> bool:
    states = np.arange(1, 129, dtype=np.uint64)
    device = cuda.to_device(states)
    random_walk[1, 128](device, 50)
    state = states.copy()
    for _ in range(50):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
    return bool((device.copy_to_host() == state).all())


def streams() -> bool:
    good = True
    work = []
    for number in range(4):
        stream = cuda.stream()
        pinned = cuda.pinned_array(10_000, np.float32)
        pinned[:] = number + 1
        device = cuda.to_device(pinned, stream=stream)
        scale[16, 128, stream](device, np.float32(2))
        device.copy_to_host(pinned, stream=stream)
        work.append((stream, pinned, number))
    for stream, pinned, number in work:
        stream.synchronize()
        good &= bool((pinned == 2 * (number + 1)).all())
    first, last = cuda.event(), cuda.event()
    first.record()
    scale[16, 128](device, np.float32(2))
    last.record()
    last.synchronize()
    return good and cuda.event_elapsed_time(first, last) >= 0


def memories() -> bool:
    managed, mapped = cuda.managed_array(1000, np.float64), cuda.mapped_array(1000, np.float64)
    managed[:], mapped[:] = 3, 5
    scale[4, 128](managed, 2.0)
    scale[4, 128](mapped, 2.0)
    cuda.synchronize()
    free, total = cuda.current_context().get_memory_info()
    return bool((managed == 6).all() and (mapped == 10).all() and 0 < free < total)


def peers() -> bool:
    """Copy from one GPU to the other and back, with a kernel on each."""
    with cuda.gpus[0]:
        here = cuda.to_device(np.arange(1000, dtype=np.float32))
        with cuda.gpus[1]:
            there = cuda.device_array(1000, np.float32)
            there.copy_to_device(here)
            scale[8, 128](there, np.float32(3))
            result = there.copy_to_host()
    return bool((result == 3 * np.arange(1000)).all())


def refusals() -> bool:
    """Errors of the driver arrive as numba's own exceptions."""
    try:
        cuda.device_array(1 << 50, np.int8)
    except Exception as error:
        return "OUT_OF_MEMORY" in str(error)
    return False


def main() -> None:
    cases = (reductions, warps, atomics, matrices, mathematics, integers, streams, memories, peers, refusals)
    print(json.dumps({case.__name__: bool(case()) for case in cases}))


if __name__ == "__main__":
    main()
